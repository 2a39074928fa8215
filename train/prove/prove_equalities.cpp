// The equalities: ways to train that must give the same losses and gradients.
#include <algorithm>
#include <filesystem>

#include "train/prove/allowed.h"
#include "train/prove/prover.h"
#include "train/prove/temporary_folder.h"
#include "train/run/checkpoint.h"
#include "train/session/device.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

// Sequences of a step are cut into documents for the proof where the data has none: their ends, in 8ths of a
// sequence
constexpr int64_t kCuts[] = {1, 4, 8};
// Of the step that the CPU makes beside a GPU: some ten seconds
constexpr double kFlopsCpu = 0x1p40;
constexpr int64_t kLeastTokensCpu = 64;
// Why documents of a model with model.sparse are not compared with the same ones apart
constexpr const char* kSparseDocuments =
    "sparse blocks are counted from the beginning of a sequence: elsewhere in one a document sees other "
    "pairs";

// The same tokens, with documents
Sequences with_documents(Sequences sequences, int64_t T) {
  if (!sequences.documents.empty()) return sequences;
  const int64_t count = std::ssize(sequences.tokens) / T;
  for (int64_t s = 0; s < count; ++s) {
    int64_t begin = 0;
    for (const int64_t eighths : kCuts) {
      const int64_t end = eighths * T / 8;
      for (int64_t t = begin; t < end; ++t)
        sequences.documents.insert(sequences.documents.end(),
                                   {static_cast<int32_t>(begin), static_cast<int32_t>(end)});
      begin = end;
    }
  }
  return sequences;
}

struct Document {
  int64_t first, length;  // in tokens of all sequences
};
std::vector<Document> documents_in(const Sequences& sequences, int64_t T) {
  std::vector<Document> all;
  for (int64_t n = 0; n < std::ssize(sequences.tokens);) {
    const int64_t end = sequences.documents[static_cast<size_t>(2 * n + 1)], length = end - n % T;
    all.push_back({n, length});
    n += length;
  }
  return all;
}

// The pairs, of which some documents are the two halves
std::vector<Document> pairs_in(const Sequences& sequences, const std::vector<Document>& documents) {
  std::vector<Document> all;
  for (size_t i = 0; i < documents.size(); ++i)
    if (is_first_of_pair(static_cast<DocumentKind>(sequences.kinds[static_cast<size_t>(documents[i].first)])))
      all.push_back({documents[i].first, documents[i].length + documents[i + 1].length});
  return all;
}

// Each pair in a sequence of its own, its two documents as they were, and the rest padding
Sequences pairs_apart(const Sequences& packed, const std::vector<Document>& pairs, int64_t longest,
                      int64_t T) {
  Sequences own;
  const auto take = [&](auto& to, const auto& from, const Document& pair, auto padding) {
    if (from.empty()) return;
    to.insert(to.end(), from.begin() + pair.first, from.begin() + pair.first + pair.length);
    to.insert(to.end(), static_cast<size_t>(longest - pair.length), padding);
  };
  for (const Document& pair : pairs) {
    take(own.tokens, packed.tokens, pair, 0);
    take(own.targets, packed.targets, pair, kNoTarget);
    take(own.kinds, packed.kinds, pair, static_cast<int32_t>(DocumentKind::kPlain));
    take(own.log_probs, packed.log_probs, pair, 0.0);
    take(own.weights, packed.weights, pair, 1.0f);
    const auto before = static_cast<int32_t>(pair.first % T);
    for (int64_t i = 2 * pair.first; i < 2 * (pair.first + pair.length); ++i)
      own.documents.push_back(packed.documents[static_cast<size_t>(i)] - before);
    for (int64_t t = pair.length; t < longest; ++t)
      own.documents.insert(own.documents.end(),
                           {static_cast<int32_t>(pair.length), static_cast<int32_t>(longest)});
  }
  return own;
}

// Each at the beginning of a sequence of its own, and what follows has no target
Sequences apart(const Sequences& packed, const std::vector<Document>& documents, int64_t longest) {
  Sequences own;
  for (const auto& [first, length] : documents) {
    own.tokens.insert(own.tokens.end(), packed.tokens.begin() + first,
                      packed.tokens.begin() + first + length);
    own.targets.insert(own.targets.end(), packed.targets.begin() + first,
                       packed.targets.begin() + first + length);
    own.tokens.insert(own.tokens.end(), static_cast<size_t>(longest - length), 0);
    own.targets.insert(own.targets.end(), static_cast<size_t>(longest - length), kNoTarget);
    const auto take = [&](auto& to, const auto& from) {
      const auto each = static_cast<int64_t>(from.size() / packed.tokens.size());
      to.insert(to.end(), from.begin() + first * each, from.begin() + (first + length) * each);
      to.resize(to.size() + static_cast<size_t>((longest - length) * each));
    };
    take(own.weights, packed.weights);
    take(own.teacher_ids, packed.teacher_ids);
    take(own.teacher_logits, packed.teacher_logits);
  }
  return own;
}

// The first tokens of the first sequence
Sequences first_tokens(const SequencesView& of, int64_t length) {
  const SequencesView first = of.tokens_from(0, length);
  Sequences cut{{first.tokens.begin(), first.tokens.end()},
                {first.targets.begin(), first.targets.end()},
                {first.documents.begin(), first.documents.end()}};
  for (int32_t& bound : cut.documents) bound = std::min(bound, static_cast<int32_t>(length));
  return cut;
}

}  // namespace

void Prover::prove_pairs() {
  const std::vector<Document> pairs = pairs_in(data_.sequences, documents_in(data_.sequences, T_));
  const int64_t longest = std::ranges::max(pairs, {}, &Document::length).length;
  Way own = way();
  own.sequence_length = longest, own.sequences = std::ssize(pairs);
  std::string why;
  const auto shape = largest_shape(way(), device_, why), own_shape = shape_that_fits(own, device_, why);
  if (!shape || !own_shape) return skip("documents", why);
  show("packed pairs");
  const StepRecord found = record(*shape, device_, data_.sequences);
  show("pairs in sequences of their own");
  add({.name = "documents",
       .compared = fmt::format("{} pairs, packed against each in a sequence of its own", pairs.size()),
       .tokens = S_ * T_,
       .measures = compare_records(
           found, record(*own_shape, device_, pairs_apart(data_.sequences, pairs, longest, T_)),
           allowed::of_model(shape->dtype, shape->model.layers)),
       .reason = allowed::kModelReason});
}

void Prover::prove_documents() {
  const bool sparse = !base_shape().model.sparse.all_full();
  if (config_.train.trains_pairs()) return sparse ? skip("documents", kSparseDocuments) : prove_pairs();
  const Sequences packed = with_documents(data_.sequences, T_);
  const std::vector<Document> documents = documents_in(packed, T_);
  const int64_t longest = std::ranges::max(documents, {}, &Document::length).length;
  Way together = way();
  together.documents = true;
  Way own = way();
  own.documents = false, own.sequence_length = longest, own.sequences = std::ssize(documents);
  std::string why;
  const auto shape = largest_shape(together, device_, why), own_shape = shape_that_fits(own, device_, why);
  if (!shape || !own_shape) return skip("documents", why);
  show("packed documents");
  RowCheck rows(packed, {.blocks = base_shape().model.layers,
                         .sequences = S_,
                         .sequence_length = T_,
                         .sparse = base_shape().model.sparse});
  const StepRecord found = record(*shape, device_, packed, [&](StepJob& job) { job.rows = &rows; });
  if (sparse) {
    skip("documents", kSparseDocuments);
    return add(proof_of_rows("documents", rows, "attention within packed documents"));
  }
  show("documents in sequences of their own");
  StepRecord expected = record(*own_shape, device_, apart(packed, documents, longest));
  std::vector<float> losses;
  for (size_t i = 0; i < documents.size() && expected.losses.size() > 1; ++i) {
    const auto begin = expected.losses.begin() + static_cast<int64_t>(i) * longest;
    losses.insert(losses.end(), begin, begin + documents[i].length);
  }
  if (!losses.empty()) expected.losses = std::move(losses);
  const bool cut = data_.sequences.documents.empty();
  add({.name = "documents",
       .compared = fmt::format("{} {}, packed against each in a sequence of its own", documents.size(),
                               cut ? "parts of the sequences" : "documents"),
       .tokens = S_ * T_,
       .measures = compare_records(found, expected, allowed::of_model(shape->dtype, shape->model.layers)),
       .reason = allowed::kModelReason});
  add(proof_of_rows("documents", rows, "attention within packed documents"));
}

void Prover::prove_micro_batch() {
  const int64_t batch = base_shape().micro_batch;
  std::string why =
      "the step is one sequence, or only one fits at a time: name --sequences 8, or a shorter "
      "--sequence-length";
  if (batch == 1) return skip("micro_batch", why);
  const auto shape = shape_that_fits(way(), device_, why);
  if (!shape) return skip("micro_batch", why);
  const StepRecord& together = base();
  show("micro-batches of one sequence");
  add({.name = "micro_batch",
       .compared = fmt::format("{} micro-batches of 1 against {} of {}", S_, S_ / batch, batch),
       .tokens = S_ * T_,
       .measures = compare_records(record(*shape, device_, data_.sequences), together,
                                   allowed::of_model(shape->dtype, shape->model.layers)),
       .reason = allowed::kModelReason});
}

void Prover::prove_resume() {
  const RunShape& shape = base_shape();
  const int64_t bytes = 3 * 4 * shape.model.parameters();  // weights and two moments in fp32
  std::error_code error;
  const auto space = std::filesystem::space(std::filesystem::temp_directory_path(), error);
  if (error || static_cast<int64_t>(space.available) < 2 * bytes)
    return skip("resume", fmt::format("a checkpoint of {} needs room in {}: name another folder with TMPDIR",
                                      format_bytes(bytes), std::filesystem::temp_directory_path().string()));
  const TemporaryFolder folder;
  StepJob job = job_of(shape, data_.sequences);
  job.sees_gradients = false;
  job.learning_rate = config_.optimizer.learning_rate;
  const std::unique_ptr<Backend> be = make_(device_);
  StepRecord expected, found;
  std::vector<ParamValues> expected_weights, found_weights;
  std::filesystem::path checkpoint;
  std::string base;  // of adapters
  {
    show("two steps, and a checkpoint between them");
    StepRunner runner(*be, shape);
    base = load(runner.state(), model_);
    runner.step(job, 1);
    job.sees_gradients = true;
    RunState state;
    state.step = 1, state.seed = config_.train.seed, state.micro_batch = shape.micro_batch;
    state.sequence_length = T_, state.device = device_.device, state.base = base;
    checkpoint = save_checkpoint(folder.path(), runner.state(), state);
    expected = runner.step(job, 2);
    expected_weights = weights_of(runner.state(), memory_);
  }
  {
    show("the second step from the checkpoint");
    StepRunner runner(*be, shape);
    load(runner.state(), model_);
    load_checkpoint(
        checkpoint, runner.state(),
        {.folder = config_.train.init_from, .options = folder_options(config_), .checksum = base});
    found = runner.step(job, 2);
    found_weights = weights_of(runner.state(), memory_);
  }
  Proof proof{.name = "resume",
              .compared = "a step after a checkpoint was read against the same step without",
              .tokens = S_ * T_,
              .reason = "nothing: the bits must be equal"};
  proof.measures = compare_records(found, expected, 0);
  for (size_t i = 0; i < found_weights.size(); ++i)
    proof.measures.push_back(compare_values("weight after it", found_weights[i].name, found_weights[i].values,
                                            expected_weights[i].values, 0));
  add(std::move(proof));
}

Proof Prover::prove_mesh(const StepRecord& one, const MeshShape& mesh, Shard shard, const std::string& what) {
  Way way = this->way();
  way.mesh = mesh, way.shard = shard;
  std::string why;
  const auto shape = shape_that_fits(way, device_, why);
  Proof proof{.name = "ranks", .compared = "", .tokens = S_ * T_};
  if (!shape) {
    proof.skipped = what + " " + why;
    return proof;
  }
  const std::unique_ptr<Backend> be = make_(device_);
  const Mesh& connected = ranks_.connect(*be, mesh);
  StepRecord found;
  {
    StepRunner runner(*be, *shape, connected.step_axes());
    load(runner.state(), model_);
    const int64_t mine = shape->sequences_per_rank() * T_,
                  first = mesh.place(Axis::kData, ranks_.rank()).rank * mine;
    StepJob job = job_of(*shape, SequencesView(data_.sequences).tokens_from(first, mine));
    job.counted = counted_;
    found = runner.step(job);
  }
  const double loss = ranks_.sum({found.loss})[0] / static_cast<double>(ranks_.size());
  ranks_.disconnect();
  found.losses = {static_cast<float>(loss)};
  StepRecord expected;
  expected.losses = {static_cast<float>(one.loss)}, expected.gradients = one.gradients;
  const double allowed = allowed::of_model(shape->dtype, shape->model.layers);
  std::vector<Measure> measures = compare_records(found, expected, allowed);
  measures[0].where = "mean of the step";
  // The largest over the ranks, each of its part
  std::map<std::string, Measure> mine;
  for (const Measure& m : measures) mine.insert({m.where, m});
  proof.measures = {measures[0]};
  for (const ParamValues& each : one.gradients) {
    const auto at = mine.find(each.name);
    const std::vector<double> all = ranks_.gather(at == mine.end() ? 0 : at->second.difference);
    const std::vector<double> largest = ranks_.gather(at == mine.end() ? 0 : at->second.largest);
    proof.measures.push_back({.what = "gradient",
                              .where = each.name,
                              .difference = *std::ranges::max_element(all),
                              .largest = *std::ranges::max_element(largest),
                              .allowed = allowed});
  }
  proof.compared = fmt::format("{} ranks, {}, against 1", ranks_.size(), what);
  proof.reason = allowed::kModelReason;
  return proof;
}

void Prover::prove_ranks() {
  const int64_t R = ranks_.size();
  if (R == 1) return skip("ranks", "there is one rank: add --ranks 2, or --gpus 2");
  const StepRecord& one = base();
  show("several ranks");
  add(prove_mesh(one, {.data = R}, Shard::kOptimizer, "sequences dealt"));
  add(prove_mesh(one, {.data = R}, Shard::kWeights, "weights split"));
  add(prove_mesh(one, {.data = 1, .context = R}, Shard::kOptimizer, "each sequence shared"));
}

void Prover::prove_device() {
  if (device_.device != Device::kCuda) return skip("device", "the device is a CPU already");
  if (config_.train.trains_pairs())
    return skip("device", "a CPU computes only the beginning of a sequence, and pairs are not cut");
  const DeviceTraits cpu = choose_device(DeviceRequest::kCpu).traits;
  const double affordable = kFlopsCpu / (6 * static_cast<double>(base_shape().model.parameters()));
  const int64_t length = std::min(T_, std::max<int64_t>(static_cast<int64_t>(affordable), kLeastTokensCpu));
  Way one = way();
  one.precision = Precision::kFp32;
  one.sequences = 1;
  one.sequence_length = length;
  if (one.attention == AttentionKind::kCudnn) one.attention = AttentionKind::kFlash;
  std::string why;
  const auto on_gpu = shape_that_fits(one, device_, why), on_cpu = shape_that_fits(one, cpu, why);
  if (!on_gpu || !on_cpu) return skip("device", why);
  const Sequences first = first_tokens(data_.sequences, length);
  if (counted(first.targets) == 0)
    return skip("device", fmt::format("no target of the first {} tokens counts", length));
  show("the GPU in fp32");
  const StepRecord gpu = record(*on_gpu, device_, first);
  show("the CPU");
  add({.name = "device",
       .compared = fmt::format("{} against the CPU, both in fp32", device_.name),
       .tokens = length,
       .measures = compare_records(gpu, record(*on_cpu, cpu, first),
                                   allowed::of_model(DType::kF32, on_gpu->model.layers)),
       .reason = allowed::kModelReason});
}

void Prover::prove_fp8() {
  if (device_.device != Device::kCuda) return skip("fp8", "it needs a GPU");
  Way fp8 = way();
  fp8.fp8 = config_.train.fp8 ? config_.train.fp8 : Fp8Config{.gemm_dtype = GemmDtype::kFp8};
  std::string why;
  const auto shape = largest_shape(fp8, device_, why);
  if (!shape) return skip("fp8", why);
  const StepRecord& expected = base();
  show("FP8");
  add({.name = "fp8",
       .compared = "GEMMs in FP8 beside the same in bf16",
       .tokens = S_ * T_,
       .measures = compare_records(record(*shape, device_, data_.sequences), expected, 0),
       .judged = false});
}

}  // namespace tessera

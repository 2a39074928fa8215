#include "train/prove/prover.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "data/packed_loader.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"
#include "train/prove/allowed.h"
#include "train/run/checkpoint.h"
#include "train/run/model_folder.h"
#include "train/run/run_data.h"
#include "train/session/device.h"
#include "train/session/from_config.h"
#include "train/session/memory_plan.h"

namespace tessera {
namespace {

constexpr double kQuietSeconds = 60;
constexpr double kLeastDifference = 0x1p-149;  // of bits without one of values
// Tokens of all sequences, unless the user names their number
constexpr int64_t kTokensCuda = 32768, kTokensCpu = 4096;

ProvedData read_path(const ProvedModel& model, const ProveOptions& options, int64_t count) {
  const Config& c = model.config;
  const std::unique_ptr<Tokenizer> tokenizer =
      find_tokenizer_if_any(model.weights, options.tokenizer, c.model);
  const TokenStream stream = open_data(options.data, c.model.vocab_size, tokenizer.get());
  if (!tokenizer && stream.tokenizer() == kBytesTokenizer)
    find_tokenizer(model.weights, "", c.model);  // says that there is none, to read a text with
  const int64_t T = c.sequence_length();
  ProvedData data{.sequences = {}, .text = stream.describe()};
  if (c.data.masks())
    PackedLoader({.stream = &stream,
                  .first_document = 0,
                  .document_count = documents_of(stream).count(),
                  .sequence_length = T,
                  .shuffle = false,
                  .answers = c.train.loss == LossKind::kKto})
        .fetch(0, count, data.sequences);
  else
    Loader({.stream = &stream,
            .first_token = 0,
            .token_count = stream.size(),
            .sequence_length = T,
            .shuffle = false})
        .fetch(0, count, data.sequences);
  return data;
}

}  // namespace

ProvedData read_proved_data(const ProvedModel& model, const ProveOptions& options, int64_t count) {
  if (!options.data.empty()) return read_path(model, options, count);
  const Config& c = model.config;
  const bool shift = model.state && c.data.shift == Shift::kAuto ? model.state->shift : c.data.shifts();
  const RunData run(c, shift);
  const int64_t position = model.state ? position_with_length(*model.state, c.sequence_length()) : 0;
  ProvedData data{.sequences = {},
                  .text = fmt::format("{}, from sequence {} on", text_of(c.data.train),
                                      format_count(static_cast<double>(position + 1)))};
  run.train().fetch(position, count, data.sequences);
  return data;
}

Measure compare_values(const std::string& what, const std::string& where, std::span<const float> found,
                       std::span<const float> expected, double allowed, double least) {
  Difference d;
  d.add(found, expected);
  const double relative = d.relative(least);
  const bool same = std::memcmp(found.data(), expected.data(), found.size_bytes()) == 0;
  return {.what = what,
          .where = where,
          .difference = same || std::isnan(relative) ? relative : std::max(relative, kLeastDifference),
          .largest = d.largest(),
          .allowed = allowed};
}

std::vector<Measure> compare_attention(const StepRecord& found, const StepRecord& expected, double allowed) {
  std::vector<Measure> all;
  const auto compare = [&](const char* what, size_t l, const std::vector<float>& a,
                           const std::vector<float>& b) {
    all.push_back(compare_values(what, fmt::format("block {}", l), a, b, allowed));
  };
  for (size_t l = 0; l < found.attention.size(); ++l)
    compare("attention output", l, found.attention[l], expected.attention[l]);
  for (size_t l = 0; l < found.lse.size(); ++l)
    if (!found.lse[l].empty() && !expected.lse[l].empty())
      compare("log-sum-exp", l, found.lse[l], expected.lse[l]);
  return all;
}

std::vector<Measure> compare_records(const StepRecord& found, const StepRecord& expected, double allowed) {
  std::vector<Measure> all;
  if (!found.losses.empty() && found.losses.size() == expected.losses.size())
    all.push_back(compare_values("loss", found.losses.size() > 1 ? "each token" : "mean of the step",
                                 found.losses, expected.losses, allowed));
  std::map<std::string, const ParamValues*> known;
  Difference whole;  // its reference
  for (const ParamValues& each : expected.gradients) {
    known[each.name] = &each;
    whole.add(each.values, each.values);
  }
  const double count = static_cast<double>(std::max<int64_t>(whole.count(), 1)),
               typical = allowed::kSmallGradient * whole.norm() / std::sqrt(count);
  for (const ParamValues& each : found.gradients) {
    const auto other = known.find(each.name);
    check(other != known.end(), "a gradient of {} was computed in one way and not in the other", each.name);
    all.push_back(compare_values("gradient", each.name, each.values,
                                 other->second->values.subspan(static_cast<size_t>(each.first)), allowed,
                                 typical * std::sqrt(static_cast<double>(each.values.size()))));
  }
  return all;
}

Prover::Prover(const ProvedModel& model, const ProveOptions& options, RankGroup& ranks,
               const BackendMaker& make)
    : model_(model),
      config_(model.config),
      options_(options),
      ranks_(ranks),
      make_(make),
      line_(STDOUT_FILENO, kQuietSeconds, ranks.is_rank_0()),
      device_(choose_device(options.device, ranks.local_rank()).traits),
      limit_(ranks.memory_limit(device_.device)),
      T_(config_.sequence_length()) {
  const int64_t most = device_.device == Device::kCuda ? kTokensCuda : kTokensCpu, R = ranks.size();
  S_ = options.sequences;
  if (S_ == 0) S_ = (std::clamp<int64_t>(most / T_, 1, kProvedSequences) + R - 1) / R * R;
  check(S_ % R == 0, "--sequences {}: {} ranks cannot share them evenly. Name a multiple of {}", S_, R, R);
  data_ = read_proved_data(model, options, S_);
  counted_ = counted_of(data_.sequences, T_);
  check(counted_ > 0, "no {} of the {} sequences of {} {}: name more --sequences",
        config_.train.trains_pairs() ? "pair" : "token", S_, data_.text,
        config_.train.trains_pairs() ? "is whole" : "is a target that counts");
}

double Prover::counted_of(const SequencesView& of, int64_t T) const {
  return config_.train.trains_pairs() ? weight_of_pairs(of, T) : weight_of_targets(of);
}

Way Prover::way() const {
  return {.attention = own_attention(),
          .precision = config_.train.precision,
          .documents = config_.data.masks(),
          .sequence_length = T_,
          .sequences = S_};
}

MemoryLimit Prover::limit_of(const DeviceTraits& device) const {
  return device.device == device_.device ? limit_ : present_memory(device.device);
}

RunShape Prover::shape_of(const Way& way, const DeviceTraits& device) const {
  Config c = config_;
  c.model.attention = way.attention;
  c.train.precision = way.precision;
  c.train.sequence_length = way.sequence_length;
  c.train.micro_batch = way.micro_batch;
  c.train.tokens_per_step = way.sequences * way.sequence_length;
  c.train.fp8 = way.fp8;
  c.ranks = way.mesh.ranks();
  c.parallel.context = way.mesh.context;
  c.parallel.shard = way.shard;
  RunShape shape = run_shape(c, device, limit_of(device));
  shape.documents = way.documents;
  shape.cuda_graphs = false;
  shape.weights = !data_.sequences.weights.empty();
  return shape;
}

std::optional<RunShape> Prover::shape_that_fits(const Way& way, const DeviceTraits& device,
                                                std::string& why) const {
  try {
    const RunShape shape = shape_of(way, device);
    const int64_t bytes = plan_memory(shape, device).peak_bytes();
    const MemoryLimit limit = limit_of(device);
    if (!limit.known() || bytes <= limit.bytes) return shape;
    why = fmt::format("needs {} with {} sequences of {} tokens at a time, and {}", format_bytes(bytes),
                      way.micro_batch, way.sequence_length, limit.free_text());
  } catch (const Error& error) {
    why = error.what();
  }
  return {};
}

std::optional<RunShape> Prover::largest_shape(Way way, const DeviceTraits& device, std::string& why) const {
  for (int64_t batch = way.sequences; batch >= 1; --batch) {
    if (way.sequences % batch != 0) continue;
    way.micro_batch = batch;
    if (auto shape = shape_that_fits(way, device, why)) return shape;
  }
  return {};
}

std::string Prover::load(TrainState& state, const ProvedModel& from) const {
  const Config& c = config_;
  state.initialize(static_cast<uint64_t>(c.train.seed),
                   from.weights.empty() ? InitialOf::kAll : InitialOf::kAdapters);
  const FolderOptions options = folder_options(c);
  if (state.has_teacher()) load_fixed(c.train.teacher, state.teacher(), options);
  if (state.has_reference()) load_fixed(c.train.reference_folder(), state.reference(), options);
  if (from.weights.empty()) return "";
  if (c.train.lora && from.checkpoint && from.config.train.lora) {
    const std::string& base = present(from.state).base;
    load_checkpoint(from.weights, state, {.folder = c.train.init_from, .options = options, .checksum = base});
    return base;
  }
  if (c.train.lora) return load_base(from.weights, state, options);
  load_weights(from.weights, state, options);
  return "";
}

StepJob Prover::job_of(const RunShape& shape, const SequencesView& of) {
  return {.shape = shape,
          .sequences = of,
          .counted = counted_of(of, shape.sequence_length),
          .optimizer = optimizer_config(config_),
          .memory = &memory_};
}

StepRecord Prover::record(const RunShape& shape, const DeviceTraits& device, const SequencesView& of,
                          const std::function<void(StepJob&)>& changes) {
  const std::unique_ptr<Backend> be = make_(device);
  StepRunner runner(*be, shape);
  load(runner.state(), model_);
  StepJob job = job_of(shape, of);
  if (changes) changes(job);
  return runner.step(job);
}

const StepRecord& Prover::base() {
  if (!base_) {
    show("the step as the run has it");
    base_ = record(base_shape(), device_, data_.sequences);
  }
  return *base_;
}

void Prover::add(Proof proof) {
  proof.seconds = seconds_since(last_);
  last_ = Clock::now();
  proofs_.push_back(std::move(proof));
}

bool Prover::asked(ProofKind kind) const {
  if (options_.only.empty()) return options_.against.empty() && options_.record.empty();
  return std::ranges::find(options_.only, name_of(kind)) != options_.only.end();
}

ProofSubject Prover::subject() const {
  return {.model = fmt::format("{}: {} parameters",
                               model_.weights.empty() ? "random weights" : model_.weights.string(),
                               format_count(static_cast<double>(base_shape().model.parameters()))),
          .device = fmt::format("{}{}, {}, {} attention", format_ranks(ranks_.size()), device_.name,
                                name_of(base_shape().dtype), name_of(base_shape().attention)),
          .data = fmt::format("{}: {} sequences of {} tokens", data_.text, S_, T_)};
}

std::vector<Proof> Prover::run() {
  std::string why;
  base_shape_ = largest_shape(way(), device_, why);
  check(base_shape_.has_value(), "the step cannot run as the run has it: {}", why);
  ranks_.enter_phase("the proofs", Timeout::kNone);
  if (ranks_.is_rank_0()) {
    const ProofSubject of = subject();
    line_.print_labelled("model", of.model);
    line_.print_labelled("device", of.device);
    line_.print_labelled("data", of.data);
    if (!options_.against.empty() || !options_.record.empty()) prove_against();
    if (asked(ProofKind::kAttention) || asked(ProofKind::kRows)) prove_attention();
    if (asked(ProofKind::kDocuments)) prove_documents();
    if (asked(ProofKind::kMicroBatch)) prove_micro_batch();
    if (asked(ProofKind::kResume)) prove_resume();
    if (asked(ProofKind::kDevice)) prove_device();
    if (asked(ProofKind::kFp8)) prove_fp8();
  }
  if (asked(ProofKind::kRanks)) prove_ranks();
  line_.clear();
  if (proofs_.empty()) return proofs_;
  line_.print(proof_table(proofs_));
  line_.print(verdict_line(proofs_));
  return proofs_;
}

}  // namespace tessera

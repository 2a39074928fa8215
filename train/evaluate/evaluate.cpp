#include "train/evaluate/evaluate.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "data/log_probs.h"
#include "data/packed_loader.h"
#include "data/teacher_logits.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/output.h"
#include "kernels/base/present.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"
#include "model/formats/folder.h"
#include "train/config/load_config.h"
#include "train/run/checkpoint.h"
#include "train/run/collective_walk.h"
#include "train/run/data_loss.h"
#include "train/run/document_log_probs.h"
#include "train/run/model_folder.h"
#include "train/run/progress.h"
#include "train/run/rank_group.h"
#include "train/run/run_data.h"
#include "train/run/teacher_logits_walk.h"
#include "train/run/verify_checkpoint.h"
#include "train/session/device.h"
#include "train/session/from_config.h"
#include "train/session/memory_plan.h"
#include "train/tasks/read_task.h"
#include "train/tasks/score.h"

namespace tessera {
namespace {

constexpr double kQuietSeconds = 60;
// Rows of a batch, unless the run or the user says how many sequences it has
constexpr int64_t kRowsCuda = 32768, kRowsCpu = 1024;

bool has_labels(const TokenStream& stream) { return stream.documents() && stream.documents()->has_labels(); }

// The sequences to evaluate, and what they come from
class EvaluatedData {
 public:
  // The data of the model's run
  EvaluatedData(const EvaluatedModel& model, Config config, int64_t most) {
    check(model.state.has_value(),
          "{} does not say which data it was trained on: only a checkpoint of ./train does. Name data with "
          "--data PATH",
          model.folder.path.string());
    config.evaluation.every = std::max<int64_t>(config.evaluation.every, 1);
    if (most > 0) config.evaluation.sequences = most;
    run_.emplace(config, false);
    check_same(model);
    source_ = &run_->validation();
    sequences_ = evaluated_sequences(config, *run_);
    text_ = fmt::format("the validation data of the run: {}",
                        run_->validation_stream() ? run_->validation_stream()->describe()
                                                  : "the end of " + text_of(config.data.train));
  }
  // All of the data at a path. `answers`: its documents are packed as kto does, where they have labels.
  EvaluatedData(const std::string& path, const EvaluatedModel& model, const Config& config,
                const Tokenizer* tokenizer, int64_t most, bool answers) {
    stream_.emplace(open_data(path, config.model.vocab_size, tokenizer));
    check(!tokenizer || stream_->tokenizer().empty() || stream_->tokenizer() == tokenizer->name(),
          "{} is encoded by the tokenizer `{}`, and the model has `{}`: prepare the data with the model's, "
          "./prepare --tokenizer FOLDER, or name another tokenizer of the model with --tokenizer",
          path, stream_->tokenizer(), tokenizer ? tokenizer->name() : "");
    check(!answers || has_labels(*stream_) || (stream_->documents() && stream_->documents()->has_pairs()),
          "--log-probs is of pairs of answers, or of answers with labels, and {} has none", path);
    if (!tokenizer && stream_->tokenizer() == kBytesTokenizer)
      find_tokenizer(model.folder.path, "", config.model);  // says that there is none, to read a text with
    const int64_t T = config.sequence_length();
    if (config.data.masks())
      packed_ =
          std::make_unique<PackedLoader>(PackedLoaderOptions{.stream = &*stream_,
                                                             .first_document = 0,
                                                             .document_count = documents_of(*stream_).count(),
                                                             .sequence_length = T,
                                                             .shuffle = false,
                                                             .answers = answers && has_labels(*stream_)});
    else
      loader_ = std::make_unique<Loader>(LoaderOptions{.stream = &*stream_,
                                                       .first_token = 0,
                                                       .token_count = stream_->size(),
                                                       .sequence_length = T,
                                                       .shuffle = false});
    if (packed_)
      source_ = packed_.get();
    else
      source_ = loader_.get();
    sequences_ = source_->sequences_per_epoch();
    if (most > 0) sequences_ = std::min(sequences_, most);
    text_ = stream_->describe();
  }

  const SequenceSource& source() const { return *source_; }
  int64_t sequences() const { return sequences_; }
  const std::string& text() const { return text_; }
  const TokenStream& stream() const { return present(stream_); }  // of a path
  const PackedLoader& packed() const { return *packed_; }         // likewise, where documents are masked

 private:
  // Other data would give a loss that looks like the run's and is not.
  void check_same(const EvaluatedModel& model) const {
    if (!present(model.state).fingerprint) return;
    const DataFingerprint now = present(run_).fingerprint();
    const auto compare = [&](const StreamFingerprint& before, const StreamFingerprint& found) {
      if (const auto differs = difference(before, found))
        fail("{} was trained on other data than its configuration now names: {}. Name data with --data PATH",
             model.folder.path.string(), *differs);
    };
    const auto& was = present(present(model.state).fingerprint);
    for (size_t i = 0; i < std::min(was.train.size(), now.train.size()); ++i)
      compare(was.train[i].stream, now.train[i].stream);
    if (was.validation && now.validation) compare(*was.validation, *now.validation);
  }

  std::optional<RunData> run_;
  std::optional<TokenStream> stream_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<PackedLoader> packed_;
  const SequenceSource* source_ = nullptr;
  int64_t sequences_ = 0;
  std::string text_;
};

// One evaluation by all ranks
class Evaluation {
 public:
  Evaluation(const EvaluatedModel& model, const EvaluateOptions& options, RankGroup& ranks)
      : model_(model),
        config_(model.config),
        options_(options),
        ranks_(ranks),
        line_(STDOUT_FILENO, kQuietSeconds, ranks.is_rank_0()) {}
  void run();

 private:
  void open_data();
  void choose_shape();
  void load();
  void describe();
  void measure_loss();
  void write_log_probs();
  void write_teacher_logits();
  void answer_tasks();
  std::vector<double> run(const SharedBatches& batches);
  void show(const std::string& what, int64_t done, int64_t total, const char* unit, double seconds);

  const EvaluatedModel& model_;
  Config config_;
  const EvaluateOptions& options_;
  RankGroup& ranks_;
  Stopping stopping_{ranks_};
  StatusLine line_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<EvaluatedData> data_;  // null: tasks alone
  std::vector<Task> tasks_;
  DeviceTraits device_;
  SessionShape shape_{};
  std::unique_ptr<Backend> backend_;
  std::optional<Arena> arena_;
  std::optional<Session> session_;
  std::string weights_;  // their checksum
  nlohmann::ordered_json json_;
};

void Evaluation::open_data() {
  tokenizer_ = find_tokenizer_if_any(model_.folder.path, options_.tokenizer, config_.model);
  const std::string data = options_.data.value_or(options_.tasks.empty() ? kRunData : "");
  if (data == kRunData)
    data_ = std::make_unique<EvaluatedData>(model_, config_, options_.sequences);
  else if (!data.empty())
    data_ = std::make_unique<EvaluatedData>(data, model_, config_, tokenizer_.get(), options_.sequences,
                                            options_.log_probs);
  check(options_.teacher_logits <= config_.model.vocab_size,
        "--teacher-logits {}: the vocabulary of the model has {} tokens", options_.teacher_logits,
        config_.model.vocab_size);
  check(options_.teacher_logits == 0 || !data_->stream().documents()->has_pairs(),
        "--teacher-logits is of texts, completions and conversations, and {} has pairs", data);
  tasks_ = read_tasks(options_.tasks, {.tokenizer = tokenizer_.get(),
                                       .vocab_size = config_.model.vocab_size,
                                       .sequence_length = config_.sequence_length(),
                                       .most_items = options_.task_items});
}

// A batch that nobody named is halved until it fits.
void Evaluation::choose_shape() {
  device_ = choose_device(options_.device, ranks_.local_rank()).traits;
  const int64_t T = config_.sequence_length();
  const MemoryLimit limit = ranks_.memory_limit(device_.device);
  const bool is_of_run = model_.state && model_.state->sequence_length == T;
  const int64_t rows = device_.device == Device::kCuda ? kRowsCuda : kRowsCpu;
  int64_t batch = options_.batch > 0 ? options_.batch : is_of_run ? model_.state->micro_batch : 0;
  const bool is_given = batch > 0;
  if (!is_given) batch = std::max<int64_t>(1, rows / T);
  const auto planned = [&] {
    config_.train.micro_batch = batch;
    config_.train.tokens_per_step = batch * T;
    config_.train.recompute = kKeepAll, config_.parallel.shard = Shard::kNone;  // no step is planned
    config_.memory.offload = Offload{};
    shape_ = run_shape(config_, device_).session();
    shape_.largest_logits = options_.teacher_logits;
    return plan_session(shape_, device_).ledger.peak_bytes();
  };
  int64_t bytes = planned();
  const auto fits = [&] { return !limit.known() || bytes <= limit.bytes; };
  for (; !fits() && !is_given && batch > 1; bytes = planned()) batch /= 2;
  check(fits(), "the evaluation needs {} with batches of {} sequences of {} tokens, and {}: --batch {}",
        format_bytes(bytes), batch, T, limit.free_text(),
        batch > 1 ? fmt::format("{} needs less", batch / 2) : "is 1 already; --sequence-length shortens it");
  ranks_.enter_phase("the setup");
  backend_ = make_backend(device_);
  arena_.emplace(make_arena(device_));
  arena_->reserve(bytes);
}

void Evaluation::load() {
  ranks_.enter_phase("the weights", Timeout::kNone);
  if (ranks_.is_rank_0()) check_undamaged(model_.folder.path, CheckpointPart::kWeights);
  session_.emplace(*backend_, present(arena_), shape_);
  weights_ = load_fixed(model_.folder.path, *session_, {.ignored_fields = options_.ignored_fields});
}

void Evaluation::describe() {
  const ModelConfig& model = shape_.model;
  line_.print_wrapped(
      labelled("model",
               fmt::format("{}: {} parameters, context {}, {}{}", model_.folder.path.string(),
                           format_count(static_cast<double>(model.parameters())), model.context,
                           tokenizer_ ? fmt::format("tokenizer {}", tokenizer_->name()) : "no tokenizer",
                           model_.state ? fmt::format(", step {}", model_.state->step) : "")),
      kLabelColumns);
  line_.print_wrapped(
      labelled("device", fmt::format("{}{}, {}, {} attention", format_ranks(ranks_.size()), device_.name,
                                     name_of(shape_.dtype), name_of(shape_.attention))),
      kLabelColumns);
  if (data_)
    line_.print_wrapped(
        labelled("data", fmt::format("{}: {} sequences of {} tokens, in batches of {}", data_->text(),
                                     format_count(static_cast<double>(data_->sequences())),
                                     shape_.sequence_length, shape_.batch)),
        kLabelColumns);
  for (const Task& task : tasks_)
    if (const std::string notice = notice_of_items_apart(task); !notice.empty()) line_.notice(notice);
  for (const Task& task : tasks_)
    if (const int64_t cut = cut_contexts(task, shape_.sequence_length); cut > 0)
      line_.notice(
          fmt::format("{}: {} choices with their contexts are longer than {} tokens: the beginning of "
                      "these contexts is left out",
                      task.name, cut, shape_.sequence_length));
  json_ = {{"model", model_.folder.path.string()},
           {"step", model_.state ? nlohmann::ordered_json(model_.state->step) : nullptr},
           {"parameters", model.parameters()},
           {"device", device_.name},
           {"precision", name_of(shape_.dtype)},
           {"attention", name_of(shape_.attention)},
           {"sequence_length", shape_.sequence_length},
           {"batch", shape_.batch}};
}

void Evaluation::show(const std::string& what, int64_t done, int64_t total, const char* unit,
                      double seconds) {
  if (done > 0 && line_.due())
    line_.show({{what, 1},
                {fmt::format("{} of {} {}", done, total, unit), 1},
                {fmt::format("{:.0f} {} a second", static_cast<double>(done) / seconds, unit), 2}});
}

// No signal stops them: it ends the program.
std::vector<double> Evaluation::run(const SharedBatches& batches) {
  return present(run_batches(stopping_, batches));
}

void Evaluation::measure_loss() {
  ranks_.enter_phase("the loss", Timeout::kNone);
  const Clock::time_point start = Clock::now();
  const LossJob job{.data = data_->source(),
                    .sequences = data_->sequences(),
                    .by_position = options_.by_position,
                    .cache = checked_cache(options_.cache, shape_.dtype)};
  SharedBatches batches = loss_batches(present(session_), job);
  batches.progress = [&](int64_t done) {
    show("loss", done * shape_.batch, data_->sequences(), "sequences", seconds_since(start));
  };
  const DataLoss found = data_loss(present(session_), job, run(batches));
  line_.clear();
  check(found.counted == 0 || std::isfinite(found.loss),
        "the loss is {}: the weights of {} are damaged, or too large for this precision. Try another "
        "checkpoint, or --precision fp32",
        found.loss, model_.folder.path.string());
  check(found.counted > 0, "no token of the {} sequences of {} is a target that counts: there is no loss",
        found.sequences, data_->text());
  line_.print(labelled(
      "loss",
      fmt::format("{:.4f}, perplexity {:.2f}, on {} tokens in {:.1f} s", found.loss, std::exp(found.loss),
                  format_count(static_cast<double>(found.counted)), seconds_since(start))));
  json_["data"] = data_->text();
  json_["sequences"] = found.sequences;
  json_["loss_tokens"] = found.counted;
  json_["loss"] = found.loss;
  json_["perplexity"] = std::exp(found.loss);
  if (!job.by_position) return;
  const PositionLosses positions =
      position_losses(0, shape_.sequence_length, found.position_sums, found.position_tokens);
  line_.print(position_table(positions, "loss by position"));
  json_["position_ends"] = positions.ends;
  json_["position_losses"] = positions.losses;
}

// The model is to be a reference.
void Evaluation::write_log_probs() {
  const TokenStream& stream = data_->stream();
  ranks_.enter_phase("the log-probabilities", Timeout::kNone);
  const Clock::time_point start = Clock::now();
  const LogProbJob job{.stream = stream, .data = data_->packed()};
  SharedBatches batches = log_prob_batches(present(session_), job);
  batches.progress = [&](int64_t done) {
    show("log-probabilities", done * shape_.batch, data_->sequences(), "sequences", seconds_since(start));
  };
  const std::vector<double> results = run(batches);
  line_.clear();
  LogProbs found{.data = fingerprint_of(stream),
                 .model = model_.folder.path.string(),
                 .weights = weights_,
                 .precision = std::string(name_of(shape_.dtype)),
                 .sequence_length = shape_.sequence_length};
  double sums[2] = {}, pairs = 0;  // of first documents of pairs, and of the second ones
  for (size_t i = 0; i < results.size(); i += 2) {
    found.sums.push_back(results[i]);
    found.tokens.push_back(static_cast<int32_t>(results[i + 1]));
    sums[i / 2 % 2] += results[i];
    pairs += results[i + 1] > 0 ? 0.5 : 0;
  }
  check(
      std::isfinite(sums[0] + sums[1]),
      "a log-probability is not finite: the weights of {} are damaged, or too large for this precision. Try "
      "another checkpoint, or --precision fp32",
      model_.folder.path.string());
  const std::filesystem::path file = log_probs_file(stream);
  if (ranks_.is_rank_0()) tessera::write_log_probs(file, found);
  const bool labels = has_labels(stream);
  line_.print(labelled(
      "log-p", fmt::format("{:.4f} of {} answers, {:.4f} of {} ones, the means of {} pairs in "
                           "{:.1f} s; written to {}",
                           sums[0] / pairs, labels ? "the" : "chosen", sums[1] / pairs,
                           labels ? "mismatched" : "rejected", pairs, seconds_since(start), file.string())));
  json_["data"] = data_->text();
  json_["pairs"] = pairs;
  json_[labels ? "logp_answers" : "logp_chosen"] = sums[0] / pairs;
  json_[labels ? "logp_mismatched" : "logp_rejected"] = sums[1] / pairs;
  json_["log_probs"] = file.string();
}

// The model is to be a teacher. Each rank writes the records of its batches.
void Evaluation::write_teacher_logits() {
  const TokenStream& stream = data_->stream();
  ranks_.enter_phase("the logits", Timeout::kNone);
  const Clock::time_point start = Clock::now();
  TeacherLogitsWriter writer(stream, {.data = fingerprint_of(stream),
                                      .model = model_.folder.path.string(),
                                      .weights = weights_,
                                      .precision = std::string(name_of(shape_.dtype)),
                                      .sequence_length = shape_.sequence_length,
                                      .vocab_size = shape_.model.vocab_size,
                                      .largest = options_.teacher_logits,
                                      .temperature = options_.temperature});
  if (ranks_.is_rank_0()) writer.create();
  ranks_.sum({0});  // the others open what is there
  writer.open();
  const TeacherLogitsJob job{.data = data_->packed(), .temperature = options_.temperature, .writer = writer};
  SharedBatches batches = teacher_logits_batches(present(session_), job);
  batches.progress = [&](int64_t done) {
    show("logits", done * shape_.batch, data_->sequences(), "sequences", seconds_since(start));
  };
  const double tokens = run(batches)[0];
  line_.clear();
  if (ranks_.is_rank_0()) writer.commit();
  line_.print(
      labelled("logits", fmt::format("the {} largest after each of {} tokens in {:.1f} s; {} written to {}",
                                     options_.teacher_logits, format_count(tokens), seconds_since(start),
                                     format_bytes(writer.bytes()), writer.path().string())));
  json_["data"] = data_->text();
  json_["loss_tokens"] = tokens;
  json_["teacher_logits"] = writer.path().string();
  json_["bytes"] = writer.bytes();
}

void Evaluation::answer_tasks() {
  std::vector<TaskResult> results;
  for (const Task& task : tasks_) {
    ranks_.enter_phase("the task " + task.name, Timeout::kNone);
    const Clock::time_point start = Clock::now();
    const TaskBatches batches(task, shape_);
    const auto progress = [&](int64_t done) {
      show(task.name, batches.choices_before(done), batches.choices(), "choices", seconds_since(start));
    };
    results.push_back(task_result(task, run(task_batches(present(session_), batches, progress))));
    line_.clear();
    json_["tasks"].push_back(to_json(results.back()));
  }
  if (!results.empty()) line_.print(task_table(results));
}

void Evaluation::run() {
  ranks_.check_same(
      model_.folder.path.string(),
      "the model: the run may have written a checkpoint just now. Run the command again, or name "
      "a checkpoint instead of the run");
  if (ranks_.is_rank_0()) check_writable(options_.json);
  try {
    open_data();
    choose_shape();
    load();
  } catch (const std::exception&) {
    check_present(model_.folder);
    throw;
  }
  describe();
  if (data_)
    options_.log_probs            ? write_log_probs()
    : options_.teacher_logits > 0 ? write_teacher_logits()
                                  : measure_loss();
  answer_tasks();
  ranks_.finish();
  if (!ranks_.is_rank_0()) return;
  // The name of a file may be no UTF-8.
  write_output(options_.json, json_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  check(!line_.lost_output() || !options_.json.empty(),
        "the figures could not be written to standard output: free some space, or name a file elsewhere with "
        "--json FILE");
}

}  // namespace

void evaluate(const EvaluatedModel& model, const EvaluateOptions& options, const World& world) {
  RankGroup ranks(world, model.config);
  std::optional<Evaluation> evaluation;  // outlives guard(): see RankGroup
  ranks.guard([&] { evaluation.emplace(model, options, ranks).run(); });
}

}  // namespace tessera

#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "data/file.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/formats/weights.h"
#include "train/memory/memory_profile.h"
#include "train/memory/memory_report.h"
#include "train/memory/plan_advice.h"
#include "train/parallel/peers.h"
#include "train/resume.h"
#include "train/run_checks.h"
#include "train/run_data.h"
#include "train/run_folder.h"
#include "train/run_log.h"
#include "train/sampler.h"
#include "train/schedule.h"
#include "train/stopping.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What a step is followed by.
struct Due {
  bool evaluation = false, sample = false, checkpoint = false;
};

class Trainer {
 public:
  Trainer(const Config& config, const TrainerOptions& options, Peers& peers);
  void run();

 private:
  const RunShape& shape() const { return plan_.shape; }
  void take_shape(const fs::path* checkpoint);
  void take_data(const fs::path* checkpoint);
  void obtain_memory(bool resuming);
  void load_weights(const fs::path* checkpoint);
  void train_all();
  Due due_before_steps();
  Due due_after(int64_t step) const;
  void work(const Due& due);
  void fetch(int64_t position);
  bool train_step(int64_t step);
  std::optional<double> evaluate();
  bool is_best(double validation_loss);
  void sample();
  void save();
  void end();
  void report_ranks();
  void write_profile();

  const Config& config_;
  Peers& peers_;
  fs::path folder_, checkpoints_, profile_;  // profile_: empty without --memory-profile
  DeviceChoice device_;
  std::optional<RunFolder> run_folder_;
  std::optional<RunData> data_;
  RunState run_, was_;                // was_: the checkpoint's, where there is one
  std::vector<std::string> notices_;  // for rank 0 to print when the run starts
  RunPlan plan_;
  double peak_flops_ = 0;
  std::unique_ptr<Backend> backend_;
  std::optional<Arena> arena_;
  std::optional<TrainState> state_;
  RunLog log_;
  Stopping stopping_;
  std::vector<int32_t> tokens_, targets_;  // of this rank's sequences of the step that comes next
  int64_t saved_ = 0;                      // the step of the newest checkpoint of this run
  fs::path resumed_;                       // the checkpoint; empty: a fresh run
  double step_seconds_ = 0;                // the last step, or what one is expected to take; equal at all ranks
};

Trainer::Trainer(const Config& config, const TrainerOptions& options, Peers& peers)
    : config_(config),
      peers_(peers),
      folder_(config.train.folder),
      checkpoints_(folder_ / "checkpoints"),
      profile_(options.memory_profile),
      device_(choose_device(config.device, peers.local_rank())),
      log_(config, run_, peers.leads()),
      stopping_(peers, [this](int number) { log_.signal(number); }) {
  peers_.check_same(name_of(device_.traits.device),
                    "where to compute; name it with --set device=cuda or cpu");
  peers_.check_same(options.or_start    ? "--resume auto"
                    : options.resume    ? "--resume"
                    : options.overwrite ? "--overwrite"
                                        : "",
                    "--resume or --overwrite: start all ranks with the same command");
  run_folder_.emplace(config, options, peers_.leads());
  const fs::path* checkpoint = run_folder_->checkpoint() ? &*run_folder_->checkpoint() : nullptr;
  peers_.check_same(checkpoint ? checkpoint->string() : "none",
                    "the newest checkpoint: train.folder has to be the same folder for all ranks");

  if (checkpoint) resumed_ = *checkpoint;
  if (!checkpoint && !config.train.init_from.empty())  // before anything slow
    notices_ = check_weights(config.train.init_from, model_config(config),
                             position_extension(config.model.position_extension));
  take_shape(checkpoint);
  if (!plan_.fits()) throw OutOfMemory(refusal(config, plan_, checkpoint));  // before any work is done
  take_data(checkpoint);
  tokens_.resize(static_cast<size_t>(shape().tokens_per_rank()));
  targets_.resize(tokens_.size());
  fetch(run_.data_position);  // data that cannot be read is refused before anything is obtained or written
  if (!profile_.empty() && peers_.size() > 1) profile_ /= fmt::format("rank_{}", peers_.rank());
  if (!profile_.empty()) prepare_profile_folder(profile_);
  obtain_memory(checkpoint != nullptr);
  load_weights(checkpoint);

  if (!peers_.leads()) return;
  for (std::string& notice : run_folder_->take()) notices_.push_back(std::move(notice));
  write_file(folder_ / "config.yaml", print_config(config));
  log_.open_metrics(folder_ / kMetricsFile, checkpoint ? run_.step : -1);
}

// The run's state and shape: those of the configuration, going on from `checkpoint` if there is one.
void Trainer::take_shape(const fs::path* checkpoint) {
  RunState& was = was_;
  if (checkpoint && !check_undamaged(*checkpoint, CheckpointPart::kWithoutTensors))
    notices_.push_back(
        fmt::format("{} has no checksums, as an earlier version of Tessera wrote it: damage to it "
                    "would not be noticed",
                    checkpoint->filename().string()));
  if (checkpoint) was = read_state(*checkpoint, model_config(config_));
  // The micro-batch that was chosen for another device, or for other ranks, need not fit this one.
  const bool same_place = was.device == name_of(device_.traits.device) && was.ranks == config_.ranks;
  plan_ = plan_run(config_, device_.traits, peers_.memory_limit(device_.traits.device),
                   same_place ? was.micro_batch : 0);
  run_ = {.step = was.step,
          .data_position = was.data_position,
          .seed = config_.train.seed,
          .micro_batch = shape().micro_batch,
          .sequence_length = shape().sequence_length,
          .ranks = config_.ranks,
          .device = name_of(device_.traits.device),
          .data = config_.data.train};
  saved_ = was.step;
  if (!checkpoint) return;
  check(was.step <= config_.train.steps,
        "{} is at step {}, and train.steps is {}: nothing is left to do. --set train.steps=N with a larger N "
        "trains on",
        checkpoint->string(), was.step, config_.train.steps);
}

// Opens the data; compares it, and the configuration, with those of `checkpoint` if there is one.
void Trainer::take_data(const fs::path* checkpoint) {
  peers_.at("the data", Pace::kAlone);
  data_.emplace(config_);
  run_.fingerprint = data_->fingerprint();
  peers_.check_same(run_.fingerprint->train.sample,
                    "a checksum of data.train: all ranks have to read the same data");
  const auto add = [&](const std::vector<std::string>& more) {
    notices_.insert(notices_.end(), more.begin(), more.end());
  };
  if (peers_.leads()) add(data_->verify());
  add(check_run({.config = config_,
                 .model = shape().model,
                 .train = data_->stream(),
                 .validation = data_->validation_stream(),
                 .tokenizer = data_->tokenizer(),
                 .resuming = checkpoint != nullptr}));
  if (!checkpoint) return;
  std::string notice;
  const std::optional<Config> was_config = config_of(*checkpoint, notice);
  if (!notice.empty()) add({notice});
  add(check_same_data(*checkpoint, was_, run_, was_config, config_));
  if (was_config)
    for (const std::string& change : changes(*was_config, config_, was_.step)) add({"changed: " + change});
  if (same_validation(was_, run_)) run_.best = was_.best;
  // A better one is wanted only where the best is there.
  if (run_.best && config_.checkpoint.keep_best &&
      !fs::exists(checkpoints_ / checkpoint_name(run_.best->step)))
    run_.best.reset();
}

void Trainer::obtain_memory(bool resuming) {
  peers_.at("the setup");
  backend_ = make_backend(device_.traits);
  peak_flops_ = gemm_peak(*backend_);
  Communicator* comm = peers_.connect(*backend_);
  arena_.emplace(make_arena(device_.traits));
  try {
    arena_->reserve(plan_.peak());
    if (!profile_.empty()) arena_->record();
    Arena::Phase phase(*arena_, "setup");
    state_.emplace(*backend_, *arena_, shape(), comm);
  } catch (const OutOfMemory& error) {
    // It was free when it was asked, but not in one piece, or another program has taken it since.
    throw OutOfMemory(fmt::format("{}\n{}", error.what(), advice_text(advice(config_, plan_, resuming))));
  }
}

void Trainer::load_weights(const fs::path* checkpoint) {
  peers_.at("the weights", Pace::kAlone);
  Arena::Phase phase(*arena_, "load weights");
  if (checkpoint) {
    if (peers_.leads()) check_undamaged(*checkpoint);
    return load_checkpoint(*checkpoint, *state_);
  }
  state_->initialize(static_cast<uint64_t>(config_.train.seed));
  if (config_.train.init_from.empty()) return;
  const fs::path source = config_.train.init_from;
  if (peers_.leads() && fs::exists(source / kChecksumsFile))
    check_undamaged(source, CheckpointPart::kWeights);
  tessera::load_weights(source, *state_, position_extension(config_.model.position_extension));
}

void Trainer::fetch(int64_t position) {
  const int64_t mine = shape().sequences_per_rank();
  data_->train().fetch(position + peers_.rank() * mine, mine, tokens_, targets_);
}

// The validation loss, the same at all ranks; nothing if a signal ended the evaluation.
std::optional<double> Trainer::evaluate() {
  Arena::Phase phase(*arena_, "evaluation", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const Clock::time_point start = Clock::now();
  const int64_t T = shape().sequence_length, total = evaluated_sequences(config_, *data_);
  std::vector<int32_t> tokens, targets;
  double sum = 0;
  peers_.at("an evaluation");
  set_stopping_point("this batch of the evaluation");
  const int64_t batch = shape().micro_batch;
  for (int64_t first = peers_.rank() * batch; first < total && !stop_signal();
       first += peers_.size() * batch) {
    const int64_t count = std::min(shape().micro_batch, total - first);
    tokens.resize(static_cast<size_t>(count * T));
    targets.resize(tokens.size());
    data_->validation().fetch(first, count, tokens, targets);
    sum += state_->evaluate(tokens, targets, count) * static_cast<double>(count);
    log_.under_way(run_.step, "evaluation", first + count, total, "sequences", seconds_since(start));
  }
  log_.line().clear();
  const std::vector<double> all = stopping_.sum({sum});
  if (stopping_.signal() != 0) return {};
  const double loss = all[0] / static_cast<double>(total);
  log_.evaluation(loss, total, seconds_since(start));
  return loss;
}

// Takes note of an evaluation. Returns whether a checkpoint of this step is wanted as the best so far.
bool Trainer::is_best(double validation_loss) {
  if (run_.step == 0 || !std::isfinite(validation_loss)) return false;
  if (run_.best && validation_loss >= run_.best->validation_loss) return false;
  run_.best = {.step = run_.step, .validation_loss = validation_loss};
  return config_.checkpoint.keep_best;
}

void Trainer::sample() {
  peers_.at("a sample", Pace::kAlone);
  if (!data_->tokenizer() || !peers_.leads()) return;
  Arena::Phase phase(*arena_, "sampling", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const Clock::time_point start = Clock::now();
  set_stopping_point("this token of the sample");
  const std::optional<std::string> text =
      sample_text(*state_, *data_->tokenizer(), config_.sampling, static_cast<uint64_t>(config_.train.seed),
                  run_.step, [] { return stop_signal() != 0; });
  if (text) log_.sample(*text, seconds_since(start));
}

void Trainer::save() {
  Arena::Phase phase(*arena_, "checkpoint", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  peers_.at("a checkpoint", Pace::kAlone);
  const Clock::time_point start = Clock::now();
  set_stopping_point("this checkpoint");
  log_.sync();  // first: where there is the checkpoint, there are the lines before it
  saved_ = run_.step;
  const fs::path path = save_checkpoint(checkpoints_, *state_, run_, print_config(config_));
  if (!peers_.leads()) return;
  const bool keeps_best = config_.checkpoint.keep_best && run_.best;
  prune_checkpoints(checkpoints_, {.newest = config_.checkpoint.keep,
                                   .every = config_.checkpoint.keep_every,
                                   .best = keeps_best ? std::optional(run_.best->step) : std::nullopt});
  log_.checkpoint(path, seconds_since(start));
}

void Trainer::write_profile() {
  write_memory_profile(
      profile_, {.ledger = arena_->ledger(),
                 .plan = plan_.memory.ledger,
                 .reserved_bytes = arena_->reserved_bytes(),
                 .device = device_.traits,
                 .run = fmt::format("{} parameters, {} attention, {} x {} sequences of {} tokens, in {}",
                                    format_count(static_cast<double>(shape().model.parameters())),
                                    config_.model.attention, shape().micro_steps, shape().micro_batch,
                                    shape().sequence_length, name_of(shape().dtype))});
}

void Trainer::report_ranks() {
  if (peers_.size() == 1) return;
  std::string text = "memory at its peak, by rank:";
  for (const double bytes : peers_.gather(static_cast<double>(arena_->ledger().peak_bytes())))
    text += " " + format_bytes(static_cast<int64_t>(bytes));
  log_.line().print(text);
}

// False: the step was dropped, as a signal came.
bool Trainer::train_step(int64_t step) {
  peers_.at(fmt::format("step {}", step));
  const Clock::time_point start = Clock::now();
  const double learning_rate = learning_rate_at(step - 1, config_.train.steps, config_.optimizer);
  Arena::Phase phase(*arena_, "step", step, Arena::Phase::kRecordFirstFew);
  const auto goes_on = [&](int64_t done) {
    peers_.at(fmt::format("step {}: after micro-batch {}", step, done));
    const double elapsed = seconds_since(start);
    if (elapsed > 1) log_.under_way(step, "this step", done, shape().micro_steps, "micro-batches", elapsed);
    return !stopping_.drops_step(done, elapsed);
  };
  if (!state_->step(tokens_, targets_, optimizer_config(config_), learning_rate, step, goes_on)) return false;
  const int64_t position = run_.data_position + shape().sequences_per_rank() * shape().ranks;
  fetch(position);  // while the device works
  TrainState::StepResult result = state_->finish_step();
  const std::vector<double> all = stopping_.sum({result.loss, seconds_since(start)});
  const double ranks = static_cast<double>(peers_.size());
  result.loss = all[0] / ranks;
  phase.end();
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
    fail(
        "step {}: the loss is {} and the gradient norm {}. The weights were not changed by this step; the last "
        "checkpoint is {}. A lower optimizer.learning_rate, a longer warm-up or clipping "
        "(optimizer.max_grad_norm) usually helps",
        step, result.loss, result.grad_norm, latest_checkpoint(checkpoints_).value_or("none").string());
  run_.step = step;
  run_.data_position = position;
  step_seconds_ = all[1] / ranks;
  log_.step(result, learning_rate, seconds_since(start), arena_->ledger());
  return true;
}

Due Trainer::due_after(int64_t step) const {
  const auto due = [&](int64_t every) {
    return every > 0 && (step % every == 0 || step == config_.train.steps);
  };
  return {.evaluation = due(config_.evaluation.every),
          .sample = due(config_.sampling.every) && data_->tokenizer(),
          .checkpoint = due(config_.checkpoint.every)};
}

void Trainer::work(const Due& due) {
  bool best = false;
  if (due.evaluation)
    if (const std::optional<double> loss = evaluate()) best = is_best(*loss);
  if (due.sample) sample();
  if (due.checkpoint || best) save();
  if (due.evaluation || due.sample || due.checkpoint) stopping_.asked();  // these may have taken long
}

// What comes before the next step: the evaluation of a fresh run; else what the checkpoint's step lacks, as a
// signal ended it there.
Due Trainer::due_before_steps() {
  if (resumed_.empty()) return {.evaluation = config_.evaluation.every > 0 && config_.evaluation.at_start};
  const std::vector<double> had =
      peers_.sum({log_.has("evaluation") ? 1.0 : 0.0, log_.has("sample") ? 1.0 : 0.0});
  const Due all = due_after(run_.step);
  const Due due{.evaluation = all.evaluation && had[0] == 0, .sample = all.sample && had[1] == 0};
  if (run_.step == config_.train.steps && !due.evaluation && !due.sample)
    log_.line().print_wrapped(
        fmt::format("nothing is left to do: the run is at step {}, and train.steps is {}. A larger one, --set "
                    "train.steps=N, trains on",
                    run_.step, config_.train.steps),
        2);
  return due;
}

void Trainer::train_all() {
  log_.begin({.config = config_,
              .shape = shape(),
              .device = device_,
              .data = *data_,
              .peak_flops = peak_flops_,
              .folder = folder_.string()},
             resumed_);
  for (const std::string& notice : notices_) log_.line().print_wrapped("notice   " + notice, 9);
  catch_stop_signals(peers_.leads());
  step_seconds_ = peers_.sum({expected_step_seconds(shape(), peak_flops_)})[0] /
                  static_cast<double>(peers_.size());
  const Due due = due_before_steps();
  if (!stopping_.asked()) work(due);
  const int64_t first = run_.step + 1;
  bool dropped = false;
  for (int64_t step = first; step <= config_.train.steps && stopping_.signal() == 0; ++step) {
    stopping_.expect_step(shape().micro_steps, step_seconds_);
    dropped = !train_step(step);
    if (dropped) break;
    // Most of a profile is known now: a reader of a long run need not wait for its end.
    if (!profile_.empty() && step == first + MemoryRecording::kFirstFew - 1) {
      Arena::Phase writing(*arena_, "memory profile");
      write_profile();
    }
    work(due_after(step));
  }
  if (dropped) log_.line().print(fmt::format("step {} is not finished; it is dropped", run_.step + 1));
  if (run_.step > saved_) save();  // the last step, or the last before the signal
  end();
}

void Trainer::end() {
  if (run_.best)
    log_.line().print(fmt::format(
        "the lowest validation loss was {:.4f}, after step {}{}", run_.best->validation_loss, run_.best->step,
        config_.checkpoint.keep_best ? ": " + (checkpoints_ / checkpoint_name(run_.best->step)).string()
                                     : ""));
  log_.line().print(memory_table(arena_->ledger(), arena_->reserved_bytes(), device_.traits));
  report_ranks();
  if (!profile_.empty()) {
    write_profile();
    log_.line().print(fmt::format("memory profile: {}{}", (profile_ / "memory.html").string(),
                                  peers_.size() > 1 ? ", and so for each rank" : ""));
  }
  peers_.leave();
  const int signal = stopping_.signal();
  if (signal == 0) return log_.stop("finished", fmt::format("step {} is done", run_.step));
  const std::string message =
      fmt::format("stopped by a signal ({}); {}", name_of_signal(signal),
                  run_.step > 0 ? fmt::format("--resume goes on from step {}", run_.step)
                                : "no step was finished, so there is nothing to resume: start it again");
  log_.line().print(message);
  log_.stop("signal", message);
}

void Trainer::run() {
  try {
    train_all();
  } catch (const std::exception& error) {
    try {
      log_.stop("error", error.what());
    } catch (const std::exception&) {  // the first error is the one to tell
    }
    throw;
  }
}

}  // namespace

void train(const Config& config, const TrainerOptions& options, const World& world) {
  Peers peers(world, config);
  std::optional<Trainer> trainer;
  peers.guard([&] { trainer.emplace(config, options, peers).run(); });
}

}  // namespace tessera

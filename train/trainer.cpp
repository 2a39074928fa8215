#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <memory>
#include <optional>

#include "data/file.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/memory/memory_profile.h"
#include "train/memory/memory_report.h"
#include "train/memory/plan_advice.h"
#include "train/metrics.h"
#include "train/parallel/peers.h"
#include "train/report/run_report.h"
#include "train/run_data.h"
#include "train/sampler.h"
#include "train/schedule.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

volatile std::sig_atomic_t g_stop = 0;   // set by a signal: finish the step, save, leave
volatile std::time_t g_stop_second = 0;  // when, on the monotonic clock

// The first signal asks the loop to stop, a later one ends the program. Launchers often send the same signal
// twice at once, to the program and to its process group: what comes within a second counts as one.
void on_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!g_stop) {
    g_stop_second = now.tv_sec;
    g_stop = 1;
  } else if (now.tv_sec - g_stop_second > 1) {
    std::signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  }
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

class Trainer {
 public:
  Trainer(const Config& config, const TrainerOptions& options, Peers& peers);
  void run();

 private:
  const RunShape& shape() const { return plan_.shape; }
  void take_shape(const fs::path* checkpoint);
  void obtain_memory(bool resuming);
  void load_weights(const fs::path* checkpoint);
  void describe() const;
  void fetch(int64_t position);
  bool stop_asked();
  void report(int64_t step, const TrainState::StepResult& result, double learning_rate, double seconds);
  void evaluate();
  void sample();
  void save();
  void report_ranks();
  void write_profile();

  const Config& config_;
  Peers& peers_;
  fs::path folder_, checkpoints_, profile_;  // profile_: empty without --memory-profile
  DeviceChoice device_;
  std::optional<RunData> data_;
  RunState run_;
  RunPlan plan_;
  double peak_flops_ = 0;
  std::unique_ptr<Backend> backend_;
  std::optional<Arena> arena_;
  std::optional<TrainState> state_;
  std::optional<MetricsFile> metrics_;
  StatusLine line_;
  std::optional<RunReport> run_report_;    // follows what metrics_ writes
  std::vector<int32_t> tokens_, targets_;  // of this rank's sequences of the step that comes next
  int64_t saved_ = 0;                      // the step of the newest checkpoint of this run
  double step_seconds_ = 0;                // smoothed, for the time that is left
};

Trainer::Trainer(const Config& config, const TrainerOptions& options, Peers& peers)
    : config_(config),
      peers_(peers),
      folder_(config.train.folder),
      checkpoints_(folder_ / "checkpoints"),
      profile_(options.memory_profile),
      device_(choose_device(config.device, peers.local_rank())),
      line_(peers.leads()) {
  peers_.check_same(name_of(device_.traits.device),
                    "where to compute; name it with --set device=cuda or cpu");
  peers_.check_same(options.resume      ? "--resume"
                    : options.overwrite ? "--overwrite"
                                        : "",
                    "--resume or --overwrite: start all ranks with the same command");
  const std::optional<fs::path> checkpoint = latest_checkpoint(checkpoints_);
  peers_.check_same(checkpoint.value_or("none").string(),
                    "the newest checkpoint: train.folder has to be the same folder for all ranks");
  check(
      !checkpoint || options.resume || options.overwrite,
      "{} holds checkpoints of an earlier run. Add --resume to go on from {}, --overwrite to remove them and "
      "start anew, or choose another folder with --set train.folder=NAME",
      folder_.string(), checkpoint ? checkpoint->filename().string() : "");
  check(checkpoint || !options.resume, "there is nothing to resume: {} holds no checkpoint",
        checkpoints_.string());

  take_shape(options.resume ? &*checkpoint : nullptr);
  if (!plan_.fits()) throw OutOfMemory(refusal(config, plan_, options.resume));  // before any work is done
  peers_.at("the data", Pace::kAlone);
  data_.emplace(config);
  tokens_.resize(static_cast<size_t>(shape().tokens_per_rank()));
  targets_.resize(tokens_.size());
  fetch(run_.data_position);  // data that cannot be read is refused before anything is obtained or written
  if (!profile_.empty() && peers_.size() > 1) profile_ /= fmt::format("rank_{}", peers_.rank());
  if (!profile_.empty()) prepare_profile_folder(profile_);
  obtain_memory(options.resume);
  load_weights(options.resume ? &*checkpoint : nullptr);

  if (!peers_.leads()) return;
  try {
    if (options.overwrite) fs::remove_all(checkpoints_);
    fs::create_directories(folder_);
  } catch (const fs::filesystem_error& error) {
    fail("cannot write to the run's folder {}: {}. Choose another with --set train.folder=NAME",
         folder_.string(), error.code().message());
  }
  write_file(folder_ / "config.yaml", print_config(config));
  metrics_.emplace(folder_ / "metrics.jsonl", options.resume ? run_.step : -1);
  run_report_.emplace(config_, line_);
  if (options.resume) line_.print(fmt::format("resumed from {}", checkpoint->string()));
}

// The run's state and shape: those of the configuration, going on from `checkpoint` if there is one.
void Trainer::take_shape(const fs::path* checkpoint) {
  RunState was;
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
  const auto same = [&](const char* key, const auto& before, const auto& now) {
    check(before == now,
          "{} was made with {} {}, this run has {}: the order of the data would change. Restore it, or start "
          "anew "
          "from these weights with train.init_from",
          checkpoint->string(), key, before, now);
  };
  same("train.seed", was.seed, run_.seed);
  same("train.sequence_length", was.sequence_length, run_.sequence_length);
  same("data.train", was.data, run_.data);
  check(was.step < config_.train.steps, "{} is at step {}, and train.steps is {}: nothing is left to do",
        checkpoint->string(), was.step, config_.train.steps);
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
  if (checkpoint) return load_checkpoint(*checkpoint, *state_);
  state_->initialize(static_cast<uint64_t>(config_.train.seed));
  if (config_.train.init_from.empty()) return;
  tessera::load_weights(config_.train.init_from, *state_, config_.model.position_extension == "interpolate");
}

void Trainer::describe() const {
  const auto [vocab, context, layers, heads, channels] = shape().model;
  fmt::print("model    {} parameters: {} layers, {} heads, {} channels, context {}, vocabulary {}\n",
             format_count(static_cast<double>(shape().model.parameters())), layers, heads, channels, context,
             vocab);
  fmt::print("device   {}, {}, {} attention, GEMM peak {:.{}f} TFLOP/s\n", device_.traits.name,
             name_of(shape().dtype), config_.model.attention, peak_flops_ / 1e12, peak_flops_ < 1e13 ? 2 : 0);
  if (!device_.notice.empty()) fmt::print("notice   {}\n", device_.notice);
  fmt::print("data     {}: {} sequences of {} tokens to train on, {} held out\n", data_->stream().describe(),
             format_count(static_cast<double>(data_->train().sequences_per_epoch())), shape().sequence_length,
             format_count(static_cast<double>(data_->validation().sequences_per_epoch())));
  if (config_.data.train == "builtin")
    fmt::print(
        "notice   this is the built-in corpus, Tessera's own sources; --set data.train=PATH trains on a text "
        "file "
        "or on token shards\n");
  if (!data_->tokenizer() && config_.sampling.every > 0)
    fmt::print("notice   these shards do not name their tokenizer, so there will be no samples of text\n");
  fmt::print("step     {} tokens: {}{} x {} sequences of {}; {} steps, folder {}\n",
             format_count(static_cast<double>(shape().tokens_per_step())), format_ranks(shape().ranks),
             shape().micro_steps, shape().micro_batch, shape().sequence_length, config_.train.steps,
             folder_.string());
  std::fflush(stdout);
}

void Trainer::fetch(int64_t position) {
  const int64_t mine = shape().sequences_per_rank();
  data_->train().fetch(position + peers_.rank() * mine, mine, tokens_, targets_);
}

void Trainer::report(int64_t step, const TrainState::StepResult& result, double learning_rate,
                     double seconds) {
  const double tokens_per_second = static_cast<double>(shape().tokens_per_step()) / seconds;
  const double mfu = tokens_per_second * shape().model.flops_per_token(shape().sequence_length) /
                     (peak_flops_ * static_cast<double>(shape().ranks));
  const int64_t memory = arena_->ledger().peak_bytes();
  step_seconds_ = step_seconds_ == 0 ? seconds : 0.9 * step_seconds_ + 0.1 * seconds;
  const double left = step_seconds_ * static_cast<double>(config_.train.steps - step);
  if (!peers_.leads()) return;
  metrics_->write({{"step", step},
                   {"loss", result.loss},
                   {"grad_norm", result.grad_norm},
                   {"learning_rate", learning_rate},
                   {"seconds", seconds},
                   {"tokens_per_second", tokens_per_second},
                   {"mfu", mfu},
                   {"memory_bytes", memory}});
  if (line_.in_place() || step % config_.train.log_every == 0 || step == config_.train.steps)
    line_.status(fmt::format(
        "step {}/{} | loss {:.4f} | norm {:.2f} | lr {:.2e} | {} tok/s | MFU {:.1f}% | {} | ETA {}", step,
        config_.train.steps, result.loss, result.grad_norm, learning_rate, format_count(tokens_per_second),
        100 * mfu, format_bytes(memory), format_duration(left)));
}

void Trainer::evaluate() {
  Arena::Phase phase(*arena_, "evaluation", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const int64_t T = shape().sequence_length;
  const int64_t total = std::min(config_.evaluation.sequences, data_->validation().sequences_per_epoch());
  std::vector<int32_t> tokens, targets;
  double sum = 0;
  peers_.at("an evaluation");
  const int64_t batch = shape().micro_batch;
  for (int64_t first = peers_.rank() * batch; first < total && !g_stop; first += peers_.size() * batch) {
    const int64_t count = std::min(shape().micro_batch, total - first);
    tokens.resize(static_cast<size_t>(count * T));
    targets.resize(tokens.size());
    data_->validation().fetch(first, count, tokens, targets);
    sum += state_->evaluate(tokens, targets, count) * static_cast<double>(count);
  }
  const std::vector<double> all = peers_.sum({sum, g_stop ? 1.0 : 0.0});
  if (all[1] > 0 || !peers_.leads()) return;
  const double loss = all[0] / static_cast<double>(total);
  metrics_->write({{"step", run_.step}, {"validation_loss", loss}, {"validation_sequences", total}});
  line_.print(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}, on {} sequences", run_.step,
                          loss, std::exp(loss), total));
}

void Trainer::sample() {
  peers_.at("a sample", Pace::kAlone);
  if (!data_->tokenizer() || g_stop || !peers_.leads()) return;
  Arena::Phase phase(*arena_, "sampling", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const std::string text = sample_text(*state_, *data_->tokenizer(), config_.sampling,
                                       static_cast<uint64_t>(config_.train.seed), run_.step);
  metrics_->write({{"step", run_.step}, {"prompt", config_.sampling.prompt}, {"sample", text}});
  line_.print(fmt::format("--- sample after step {} ---\n{}{}\n---", run_.step,
                          printable(config_.sampling.prompt), printable(text)));
}

void Trainer::save() {
  Arena::Phase phase(*arena_, "checkpoint", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  peers_.at("a checkpoint", Pace::kAlone);
  const Clock::time_point start = Clock::now();
  saved_ = run_.step;
  const fs::path path = save_checkpoint(checkpoints_, *state_, run_);
  if (!peers_.leads()) return;
  prune_checkpoints(checkpoints_, config_.checkpoint.keep);
  line_.print(fmt::format("step {}: checkpoint {} written in {:.1f} s", run_.step, path.string(),
                          seconds_since(start)));
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
  line_.print(text);
}

// Whether the run is to end after this step: a signal that came to one rank counts for all.
bool Trainer::stop_asked() { return peers_.sum({g_stop ? 1.0 : 0.0})[0] > 0; }

void Trainer::run() {
  if (peers_.leads()) describe();
  catch_signals();
  const int64_t sequences = shape().sequences_per_rank() * shape().ranks;
  const OptimizerConfig optimizer = optimizer_config(config_);
  const int64_t first = run_.step + 1;
  bool stop = stop_asked();
  for (int64_t step = first; step <= config_.train.steps && !stop; ++step) {
    if (run_report_) run_report_->refresh();
    peers_.at(fmt::format("step {}", step));
    const Clock::time_point start = Clock::now();
    const double learning_rate = learning_rate_at(step - 1, config_.train.steps, config_.optimizer);
    Arena::Phase phase(*arena_, "step", step, Arena::Phase::kRecordFirstFew);
    state_->step(tokens_, targets_, optimizer, learning_rate, step, [&](int64_t done) {
      peers_.at(fmt::format("step {}: after micro-batch {}", step, done));
      // Only a CPU's step is long enough to watch: a GPU's micro-steps are merely enqueued here.
      if (line_.in_place() && device_.traits.device == Device::kCpu && seconds_since(start) > 1)
        line_.status(fmt::format("step {}/{} | {} of {} micro-batches | {}{}", step, config_.train.steps,
                                 done, shape().micro_steps, format_duration(seconds_since(start)),
                                 g_stop ? " | stopping after this step" : ""));
    });
    run_.data_position += sequences;
    fetch(run_.data_position);  // while the device works
    TrainState::StepResult result = state_->finish_step();
    const std::vector<double> all = peers_.sum({result.loss, g_stop ? 1.0 : 0.0});
    result.loss = all[0] / static_cast<double>(peers_.size());
    stop = all[1] > 0;
    phase.end();
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
      fail(
          "step {}: the loss is {} and the gradient norm {}. The weights were not changed by this step; the "
          "last "
          "checkpoint is {}. A lower optimizer.learning_rate, a longer warm-up or clipping "
          "(optimizer.max_grad_norm) usually helps",
          step, result.loss, result.grad_norm, latest_checkpoint(checkpoints_).value_or("none").string());
    report(step, result, learning_rate, seconds_since(start));
    run_.step = step;
    // Most of a profile is known now: a reader of a long run need not wait for its end.
    if (!profile_.empty() && step == first + MemoryRecording::kFirstFew - 1) {
      Arena::Phase writing(*arena_, "memory profile");
      write_profile();
    }

    const bool last = step == config_.train.steps;
    const auto due = [&](int64_t every) { return every > 0 && (step % every == 0 || last); };
    const bool evaluates = due(config_.evaluation.every), samples = due(config_.sampling.every),
               saves = due(config_.checkpoint.every);
    if (evaluates) evaluate();
    if (samples) sample();
    if (saves) save();
    if (evaluates || samples || saves) stop = stop || stop_asked();  // these may have taken long
  }
  if (run_.step > saved_) save();  // the last step, or the one in which the signal came
  line_.print(memory_table(arena_->ledger(), arena_->reserved_bytes(), device_.traits));
  report_ranks();
  if (!profile_.empty()) {
    write_profile();
    line_.print(fmt::format("memory profile: {}{}", (profile_ / "memory.html").string(),
                            peers_.size() > 1 ? ", and so for each rank" : ""));
  }
  peers_.leave();
  if (stop) line_.print(fmt::format("stopped by a signal; --resume goes on from step {}", run_.step));
}

}  // namespace

void train(const Config& config, const TrainerOptions& options, const World& world) {
  Peers peers(world, config);
  std::optional<Trainer> trainer;
  peers.guard([&] { trainer.emplace(config, options, peers).run(); });
}

}  // namespace tessera

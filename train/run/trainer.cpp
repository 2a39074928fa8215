#include "train/run/trainer.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/file.h"
#include "model/formats/weights.h"
#include "train/config/check_config.h"
#include "train/config/print_config.h"
#include "train/memory/memory_profile.h"
#include "train/memory/plan_advice.h"
#include "train/run/chat_files.h"
#include "train/run/checkpoint.h"
#include "train/run/epochs.h"
#include "train/run/gemm_choices.h"
#include "train/run/rank_group.h"
#include "train/run/resume.h"
#include "train/run/run_checks.h"
#include "train/run/run_data.h"
#include "train/run/run_folder.h"
#include "train/run/run_log.h"
#include "train/run/schedule.h"
#include "train/run/train_loop.h"
#include "train/session/device.h"
#include "train/session/from_config.h"
#include "train/session/train_state.h"
#include "train/tasks/read_task.h"
#include "train/tasks/score.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class Trainer {
 public:
  Trainer(const Config& config, const TrainerOptions& options, RankGroup& ranks);
  void run();

 private:
  const RunShape& shape() const { return plan_.shape; }
  void take_shape(const fs::path* checkpoint);
  void plan_every_phase(const fs::path* checkpoint);
  void take_data(const fs::path* checkpoint);
  void check_later_data();
  void take_tasks();
  void add_notices(const std::vector<std::string>& notices) {
    notices_.insert(notices_.end(), notices.begin(), notices.end());
  }
  void open_device();
  void choose_gemms(bool resuming);
  void obtain_memory(bool resuming);
  void next_phase(const fs::path& checkpoint);
  void load_weights(const fs::path* checkpoint);
  void take_over(const fs::path& folder);

  Config config_;  // as it was given, with the steps of train.epochs
  RankGroup& ranks_;
  fs::path folder_, checkpoints_, profile_;  // profile_: empty without --memory-profile
  DeviceChoice device_;
  std::optional<RunFolder> run_folder_;
  std::optional<RunData> data_;
  std::vector<Task> tasks_;           // of evaluation.tasks
  RunState run_, was_;                // was_: the checkpoint's, where there is one
  std::vector<std::string> notices_;  // for rank 0 to print when the run starts
  size_t phase_ = 0;                  // of train.context_schedule
  std::vector<RunPlan> plans_;        // of all phases
  RunPlan plan_;                      // of this one
  double peak_flops_ = 0;
  GemmChoices gemms_;  // the algorithms of all phases
  std::unique_ptr<Backend> backend_;
  Communicator* comm_ = nullptr;
  std::optional<Arena> arena_;
  std::optional<TrainState> state_;
  RunLog log_;
  Sequences next_;                                       // this rank's, of the next step
  fs::path resumed_;                                     // the checkpoint; empty: a fresh run
  CopiedFiles copied_;                                   // into every checkpoint; on rank 0
  nlohmann::json token_ids_ = nlohmann::json::object();  // the same
};

Trainer::Trainer(const Config& config, const TrainerOptions& options, RankGroup& ranks)
    : config_(config),
      ranks_(ranks),
      folder_(config.train.folder),
      checkpoints_(folder_ / "checkpoints"),
      profile_(options.memory_profile),
      device_(choose_device(config.device, ranks.local_rank())),
      log_(config_, run_, ranks.is_rank_0()) {
  ranks_.check_same(name_of(device_.traits.device),
                    "where to compute; name it with --set device=cuda or cpu");
  ranks_.check_same(options.or_start    ? "--resume auto"
                    : options.resume    ? "--resume"
                    : options.overwrite ? "--overwrite"
                                        : "",
                    "--resume or --overwrite: start all ranks with the same command");
  run_folder_.emplace(config, options, ranks_.is_rank_0());
  const fs::path* checkpoint = run_folder_->checkpoint() ? &*run_folder_->checkpoint() : nullptr;
  ranks_.check_same(checkpoint ? checkpoint->string() : "none",
                    "the newest checkpoint: train.folder has to be the same folder for all ranks");

  add_notices(config.notices);
  if (checkpoint) resumed_ = *checkpoint;
  if (!checkpoint) check_init_from(config_);
  std::string& init_from = config_.train.init_from;
  if (init_from == kRequired) init_from.clear();  // the weights are the checkpoint's
  check(!config.train.lora || !init_from.empty(),
        "train.lora.rank is {}, and adapters belong to a trained model: name its folder with --set "
        "train.init_from=FOLDER",
        config.train.lora.rank);
  const bool reads_base = !checkpoint || config.train.lora;
  if (reads_base && !init_from.empty())  // before anything slow
    add_notices(check_weights(init_from, model_config(config), config.model.position_extension));
  take_shape(checkpoint);  // refuses a run that does not fit, before any slow work
  take_data(checkpoint);
  take_tasks();
  // Data that cannot be read is refused before any memory is allocated or any file is written.
  fetch_step(*data_, shape(), ranks_.place(Axis::kData), run_.data_position, next_);
  if (!profile_.empty() && ranks_.size() > 1) profile_ /= fmt::format("rank_{}", ranks_.rank());
  if (!profile_.empty()) prepare_profile_folder(profile_);
  open_device();
  choose_gemms(checkpoint != nullptr);
  obtain_memory(checkpoint != nullptr);
  load_weights(checkpoint);

  if (!ranks_.is_rank_0()) return;
  add_notices(run_folder_->take());
  write_file(folder_ / "config.yaml", print_config(config));
  if (!gemms_.table.choices.empty()) write_file(folder_ / kGemmsFile, text_of(gemms_.table));
  log_.open_metrics(folder_ / kMetricsFile, checkpoint ? run_.step : -1);
}

// The run's state and shape, from the configuration and from `checkpoint` if there is one
void Trainer::take_shape(const fs::path* checkpoint) {
  if (checkpoint) {
    check_undamaged(*checkpoint, CheckpointPart::kWithoutTensors);
    was_ = read_state(*checkpoint, model_config(config_));
  }
  const RunState& was = was_;
  phase_ = config_.phase_after(was.step);
  plan_every_phase(checkpoint);
  run_ = {.step = was.step,
          .data_position = position_with_length(was, shape().sequence_length),
          .seed = config_.train.seed,
          .micro_batch = shape().micro_batch,
          .sequence_length = shape().sequence_length,
          .ranks = config_.ranks,
          .device = device_.traits.device,
          .data = text_of(config_.data.train),
          .shift = checkpoint && config_.data.shift == Shift::kAuto ? was.shift : config_.data.shifts(),
          .documents = config_.data.documents,
          .freeze = text_of(config_.train.freeze),
          .lora = text_of(config_.train.lora),
          .base = was.base};
}

// All phases are planned before the run starts, with the memory that is free now. A phase that lies behind
// the checkpoint need not fit.
void Trainer::plan_every_phase(const fs::path* checkpoint) {
  // A micro-batch that was chosen for another device, or another number of ranks, may not fit this device.
  const bool same_place = was_.device == device_.traits.device && was_.ranks == config_.ranks;
  const MemoryLimit limit = ranks_.memory_limit(device_.traits.device);
  for (size_t phase = 0; phase < config_.phases(); ++phase) {
    const Config config = config_.of_phase(phase);
    const bool same_length = was_.sequence_length == config.sequence_length();
    plans_.push_back(
        plan_run(config, device_.traits, limit, same_place && same_length ? was_.micro_batch : 0));
    if (phase >= phase_ && !plans_.back().fits())
      throw OutOfMemory(phase_name(config_, phase) + refusal(config, plans_.back(), checkpoint));
  }
  plan_ = plans_[phase_];
}

// The data of later phases: too short for a longer sequence, it would end the run in the middle.
void Trainer::check_later_data() {
  for (size_t phase = phase_ + 1; phase < config_.phases(); ++phase) {
    const RunData later(config_.of_phase(phase), run_.shift);
    for (size_t i = 0; i < later.sources().size(); ++i)
      check(
          later.sources()[i].range.token_count == data_->sources()[i].range.token_count,
          "{}too little text in {} for a sequence to train on and one to hold out. Use more data, a shorter "
          "phase, or a larger data.validation_fraction",
          phase_name(config_, phase), later.sources()[i].stream.path().string());
  }
}

// Opens the data; compares it, and the configuration, with those of `checkpoint` if there is one.
void Trainer::take_data(const fs::path* checkpoint) {
  ranks_.enter_phase("the data", Timeout::kNone);
  data_.emplace(config_.of_phase(phase_), run_.shift);
  check_later_data();
  if (config_.train.epochs > 0)
    config_.epoch_steps = steps_of_epochs(config_, data_->train().sequences_per_epoch(), run_);
  if (const std::string notice = warm_up_notice(config_.steps(), config_.optimizer); !notice.empty())
    add_notices({notice});
  check(run_.step <= config_.steps(), "{} is at step {}, and nothing is left to do: {}", resumed_.string(),
        run_.step, advice_on_length(config_));
  run_.fingerprint = data_->fingerprint();
  std::string samples;
  for (const auto& source : run_.fingerprint->train) samples += source.stream.sample + source.packing;
  ranks_.check_same(samples, "a checksum of data.train: all ranks have to read the same data");
  if (ranks_.is_rank_0()) add_notices(data_->verify());
  add_notices(data_->packing_notices());
  add_notices(check_run(
      {.config = config_, .model = shape().model, .data = *data_, .resuming = checkpoint != nullptr}));
  if (!checkpoint) return;
  add_notices(compare_with_checkpoint(*checkpoint, was_, run_, config_, *data_));
  take_best(*checkpoint, was_, run_, config_);
}

// A choice has to fit into a sequence of every phase to come.
void Trainer::take_tasks() {
  const Config::Evaluation& evaluation = config_.evaluation;
  if (evaluation.tasks.empty()) return;
  int64_t shortest = shape().sequence_length;
  for (size_t phase = phase_; phase < config_.phases(); ++phase)
    shortest = std::min(shortest, plans_[phase].shape.sequence_length);
  tasks_ = read_tasks(evaluation.tasks, {.tokenizer = data_->tokenizer(),
                                         .vocab_size = shape().model.vocab_size,
                                         .sequence_length = shortest,
                                         .most_items = evaluation.task_items});
  std::string items;
  for (const Task& task : tasks_)
    if (const std::string notice = notice_of_items_apart(task); !notice.empty()) add_notices({notice});
  for (const Task& task : tasks_) items += fmt::format("{}: {} items; ", task.name, task.items.size());
  ranks_.check_same(items, "the files of evaluation.tasks: all ranks have to read the same");
}

void Trainer::open_device() {
  ranks_.enter_phase("the setup");
  backend_ = make_backend(device_.traits);
  peak_flops_ = gemm_peak(*backend_);
  comm_ = &ranks_.connect(*backend_).axis(Axis::kAll);
}

// Once for all phases, while the memory of the run is still free
void Trainer::choose_gemms(bool resuming) {
  std::vector<RunShape> shapes;
  for (size_t phase = phase_; phase < plans_.size(); ++phase) shapes.push_back(plans_[phase].shape);
  const fs::path file = folder_ / kGemmsFile;
  const bool kept = fs::exists(file);
  gemms_ = use_chosen_gemms(*backend_, config_, shapes, file, ranks_, log_.line());
  ranks_.enter_phase("the setup");
  add_notices(gemms_.notices);
  if (resuming && !kept && !gemms_.table.choices.empty())
    add_notices(
        {fmt::format("{} does not exist: the algorithms of matrix products are chosen now, and the "
                     "bits of this run may differ from before",
                     file.string())});
}

void Trainer::obtain_memory(bool resuming) {
  arena_.emplace(make_arena(device_.traits));
  try {
    arena_->reserve(plan_.peak());
    if (!profile_.empty()) arena_->record();
    Arena::Phase phase(*arena_, "setup");
    state_.emplace(*backend_, *arena_, shape(), comm_);
  } catch (const OutOfMemory& error) {
    // The memory was free when the plan was made, but not in one piece, or another program has taken it
    // since.
    throw OutOfMemory(
        fmt::format("{}\n{}", error.what(), advice_text(advice(config_.of_phase(phase_), plan_, resuming))));
  }
}

// Continues from `checkpoint`, the end of a phase of train.context_schedule, as a run that resumes from it.
void Trainer::next_phase(const fs::path& checkpoint) {
  ranks_.enter_phase("the next phase", Timeout::kNone);
  ranks_.sum({0});  // all ranks wait for the checkpoint
  plan_ = plans_[++phase_];
  run_.data_position = position_with_length(run_, shape().sequence_length);
  run_.sequence_length = shape().sequence_length;
  run_.micro_batch = shape().micro_batch;
  run_.best.reset();
  run_.evaluations_since_best = 0;
  data_.emplace(config_.of_phase(phase_), run_.shift);
  run_.fingerprint = data_->fingerprint();  // documents are packed for this length
  fetch_step(*data_, shape(), ranks_.place(Axis::kData), run_.data_position, next_);
  state_.reset();
  arena_.reset();
  obtain_memory(true);
  load_weights(&checkpoint);
}

// What belongs to the weights and is no part of the model
void Trainer::take_over(const fs::path& folder) {
  copied_ = read_copied_files(folder);
  token_ids_ = read_token_ids(folder);
}

void Trainer::load_weights(const fs::path* checkpoint) {
  ranks_.enter_phase("the weights", Timeout::kNone);
  Arena::Phase phase(*arena_, "load weights");
  if (checkpoint) {
    if (ranks_.is_rank_0()) {
      check_undamaged(*checkpoint);
      take_over(*checkpoint);
    }
    return load_checkpoint(*checkpoint, *state_,
                           {.folder = config_.train.init_from,
                            .extension = config_.model.position_extension,
                            .checksum = run_.base});
  }
  const bool has_weights = !config_.train.init_from.empty();
  state_->initialize(static_cast<uint64_t>(config_.train.seed),
                     has_weights ? InitialOf::kAdapters : InitialOf::kAll);
  if (!has_weights) return;
  const fs::path source = config_.train.init_from;
  if (ranks_.is_rank_0()) {
    check_undamaged(source, CheckpointPart::kWeights);
    take_over(source);
  }
  const PositionExtension extension = config_.model.position_extension;
  if (!config_.train.lora) return tessera::load_weights(source, *state_, extension);
  run_.base = load_base(source, *state_, extension);
  ranks_.check_same(run_.base,
                    "a checksum of train.init_from: all ranks have to start from the same weights");
}

void Trainer::run() {
  // A checkpoint has the tokenizer of the data, unless the weights that the run started from had one.
  if (const Tokenizer* tokenizer = data_->tokenizer(); tokenizer && !tokenizer->json().empty())
    if (!copied_.contains(kTokenizerFile) && !copied_.contains("vocab.json"))
      copied_[kTokenizerFile] = tokenizer->json();
  if (data_->tokenizer() && ranks_.is_rank_0())
    add_notices(keep_chat(read_chat_data(data_->paths()), *data_->tokenizer(), token_ids_, copied_));
  TrainLoop({.config = config_,
             .ranks = ranks_,
             .device = device_,
             .plan = plan_,
             .data = *data_,
             .tasks = tasks_,
             .arena = *arena_,
             .state = *state_,
             .now = run_,
             .log = log_,
             .next = next_,
             .peak_flops = peak_flops_,
             .gemms = gemms_.summary,
             .folder = folder_,
             .checkpoints = checkpoints_,
             .profile = profile_,
             .resumed = resumed_,
             .copied = copied_,
             .token_ids = token_ids_,
             .next_phase = [this](const fs::path& checkpoint) { next_phase(checkpoint); },
             .notices = notices_})
      .run();
}

}  // namespace

void train(const Config& config, const TrainerOptions& options, const World& world) {
  RankGroup ranks(world, config);
  std::optional<Trainer> trainer;
  ranks.guard([&] { trainer.emplace(config, options, ranks).run(); });
}

}  // namespace tessera

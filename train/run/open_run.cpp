#include "train/run/open_run.h"

#include <algorithm>

#include "kernels/base/file.h"
#include "kernels/base/present.h"
#include "model/formats/weights.h"
#include "train/config/check_config.h"
#include "train/config/print_config.h"
#include "train/memory/memory_profile.h"
#include "train/memory/plan_advice.h"
#include "train/run/bad_step_folder.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/epochs.h"
#include "train/run/nf4_base.h"
#include "train/run/other_models.h"
#include "train/run/resume.h"
#include "train/run/run_checks.h"
#include "train/run/schedule.h"
#include "train/run/verify_checkpoint.h"
#include "train/session/from_config.h"
#include "train/session/measure_links.h"
#include "train/tasks/read_task.h"
#include "train/tasks/score.h"

namespace tessera {

namespace fs = std::filesystem;

OpenRun::OpenRun(const Config& given, const TrainerOptions& options, RankGroup& of)
    : config(given),
      ranks(of),
      paths{.folder = given.train.folder,
            .checkpoints = fs::path(given.train.folder) / "checkpoints",
            .profile = options.memory_profile,
            .resumed = {}},
      device{.choice = choose_device(given.device, ranks.local_rank()), .backend = {}},
      log(config, now, ranks.is_rank_0()) {
  check_options(options);
  const std::optional<fs::path>& found = present(run_folder_).checkpoint();
  const Checkpoint checkpoint = found ? &*found : nullptr;
  if (checkpoint) paths.resumed = *checkpoint;
  add_notices(given.notices);
  if (!checkpoint) check_init_from(config);
  std::string& init_from = config.train.init_from;
  if (init_from == kRequired) init_from.clear();  // the weights are the checkpoint's
  check(!given.train.lora || !init_from.empty(),
        "train.lora.rank is {}, and adapters belong to a trained model: name its folder with --set "
        "train.init_from=FOLDER",
        given.train.lora.rank);
  const bool reads_base = !checkpoint || given.train.lora;
  if (!checkpoint && !init_from.empty() && given.optimizer.rule == OptimizerRule::kMuon)
    add_notices(
        {"optimizer.rule=muon finetunes weights that may have been trained by AdamW; whether that helps is "
         "not settled. Compare with optimizer.rule=adamw"});
  if (reads_base && !init_from.empty())  // before anything slow
    add_notices(check_weights(init_from, model_config(given), folder_options(given)));
  if (reads_base && given.train.lora) {
    const ComparedBase forms = compare_forms(init_from, given);
    base_is_kept = forms.is_kept;
    add_notices(forms.notices);
  }
  add_notices(OtherModels(config, ranks, paths.resumed).check_folders());
  take_shape(checkpoint);  // refuses a run that does not fit, before any slow work
  take_data(checkpoint);
  take_tasks();
  // Data that cannot be read is refused before any memory is allocated or any file is written.
  phase->fetch_step(now.data_position, ranks.place(Axis::kData));
  if (!paths.profile.empty() && ranks.size() > 1) paths.profile /= fmt::format("rank_{}", ranks.rank());
  if (!paths.profile.empty()) prepare_profile_folder(paths.profile);
  ranks.enter_phase("the setup");
  if (!device.backend) device.backend = make_backend(device.choice.traits);
  device.peak_flops = gemm_peak(*device.backend, bool(shape().fp8));
  device.mesh = &ranks.connect(*device.backend, shape().mesh);
  if (!ranks.network().empty()) add_notices({"machines reach one another: " + ranks.network()});
  choose_gemms(checkpoint != nullptr);
  allocate(checkpoint != nullptr);
  load_weights(checkpoint);
  if (leads_disk()) {
    add_notices(present(run_folder_).take());
    write_file(paths.folder / "config.yaml", print_config(given));
    if (!gemms_.table.choices.empty()) write_gemms_file(paths.folder, gemms_.table);
  }
  if (ranks.is_rank_0()) {
    log.open_metrics(paths.folder / kMetricsFile, checkpoint ? now.step : -1, [this] { check_folder(); });
  }
  add_notices(kept.keep_tokenizer(phase->data(), leads_disk()));
}

// All ranks were started alike, and find the same folder.
void OpenRun::check_options(const TrainerOptions& options) {
  ranks.check_same(name_of(device.choice.traits.device),
                   "where to compute; name it with --set device=cuda or cpu");
  ranks.check_same(options.or_start    ? "--resume auto"
                   : options.resume    ? "--resume"
                   : options.overwrite ? "--overwrite"
                                       : "",
                   "--resume or --overwrite: start all ranks with the same command");
  disks = find_disks(paths.folder, ranks);
  if (disks.several()) {
    check_same_files();
    add_notices({fmt::format("{} is not on a shared disk: each machine keeps its part of every checkpoint",
                             paths.folder.string())});
  }
  run_folder_.emplace(config, options, disks, ranks);
  const std::optional<fs::path>& checkpoint = run_folder_->checkpoint();
  ranks.check_same(checkpoint ? checkpoint->string() : "none",
                   "the newest checkpoint: train.folder has to be the same folder for all ranks");
  if (run_folder_->lacks_files()) bring_files();
}

// Files that the ranks read from disks of their own: weights that differ would train models that differ.
void OpenRun::check_same_files() {
  for (const auto& [key, path] : {std::pair("train.init_from", config.train.init_from),
                                  {"train.reference", config.train.reference},
                                  {"train.teacher", config.train.teacher}})
    ranks.check_same_lines(
        path.empty() || path == kRequired || !fs::exists(path) ? "" : lines_of_files(path),
        fmt::format("{}={} has other files on another machine: copy the folder from one to the other", key,
                    path));
}

// What disks lack of the checkpoint, before anything of it is read
void OpenRun::bring_files() {
  ranks.enter_phase("files of the checkpoint", Timeout::kNone);
  device.backend = make_backend(device.choice.traits);
  const Mesh& mesh = ranks.connect(*device.backend, {.data = ranks.size()});
  add_notices(present(run_folder_)
                  .bring_files(*present(run_folder_).checkpoint(), *device.backend, mesh.axis(Axis::kAll)));
  ranks.disconnect();
}

// A run that a bad step has stopped could not write it to a checkpoint.
std::set<int64_t> OpenRun::before_bad_steps(const RunState& was) const {
  std::set<int64_t> steps = checkpoints_before_bad_steps(paths.folder);
  std::erase_if(steps, [&](int64_t step) { return step > was.step; });
  steps.insert(was.before_bad_steps.begin(), was.before_bad_steps.end());
  return steps;
}

// Steps of another size, or sequences of another length, have other losses and norms.
RecentSteps OpenRun::recent_of(const RunState& was, const Config& config, const RunShape& shape) {
  const bool compare =
      was.recent.tokens_per_step == shape.tokens_per_step() && was.sequence_length == shape.sequence_length;
  if (!config.train.on_bad_step.judges_spikes()) return {};
  return compare ? was.recent : RecentSteps{.tokens_per_step = shape.tokens_per_step()};
}

// The slowest rank counts.
void OpenRun::measure_links() {
  ranks.enter_phase("measuring the links between machines", Timeout::kNone);
  device.backend = make_backend(device.choice.traits);
  const LinkRates own = tessera::measure_links(
      *device.backend, ranks.connect(*device.backend, {.data = ranks.size(), .replicas = config.nodes}));
  ranks.disconnect();
  config.links = {.within = std::ranges::min(ranks.gather(own.within)),
                  .between = std::ranges::min(ranks.gather(own.between))};
  const auto text = [](double rate) { return fmt::format("{:.3g} GB/s", rate / 1e9); };
  add_notices(
      {fmt::format("each rank sends {}{} to another machine, as measured now",
                   config.links.within > 0 ? text(config.links.within) + " within its machine and " : "",
                   text(config.links.between))});
}

// Plans of all phases, and the run's state: from the configuration, and from `checkpoint` if there is one
void OpenRun::take_shape(Checkpoint checkpoint) {
  if (checkpoint) {
    check_undamaged(*checkpoint, CheckpointPart::kWithoutTensors);
    was_ = read_state(*checkpoint, model_config(config));
  }
  const RunState& was = was_;
  const size_t first = config.phase_after(was.step);
  plan_every_phase(first, checkpoint);
  const RunShape& shape = plans_[first].shape;
  now = {.step = was.step,
         .data_position = position_with_length(was, shape.sequence_length),
         .seed = config.train.seed,
         .micro_batch = shape.micro_batch,
         .sequence_length = shape.sequence_length,
         .ranks = config.ranks,
         .shard = shape.shard,
         .replicas = shape.mesh.replicas,
         .mlp_chunk = shape.mlp_chunk,
         .device = device.choice.traits.device,
         .data = text_of(config.data.train),
         .shift = checkpoint && config.data.shift == Shift::kAuto ? was.shift : config.data.shifts(),
         .documents = config.data.documents,
         .freeze = text_of(config.train.freeze),
         .lora = text_of(config.train.lora),
         .skipped_updates = was.skipped_updates,
         .rewinds = was.rewinds,
         .passed_over_tokens = was.passed_over_tokens,
         .before_bad_steps = before_bad_steps(was),
         .recent = recent_of(was, config, shape),
         .base = was.base};
}

// All phases are planned before the run starts, with the memory that is free now. One that lies behind the
// checkpoint, before `first`, need not fit.
void OpenRun::plan_every_phase(size_t first, Checkpoint checkpoint) {
  // A micro-batch that was chosen for another device, or another number of ranks, may not fit this device.
  const bool same_place = was_.device == device.choice.traits.device && was_.ranks == config.ranks;
  config.nodes = ranks.nodes();
  if (config.finds_replicas() && !(same_place && was_.replicas > 0)) measure_links();
  const MemoryLimit limit = ranks.memory_limit(device.choice.traits.device);
  if (!limit.others.empty()) add_notices({limit.others + ". The run is planned for what is free"});
  for (size_t i = 0; i < config.phases(); ++i) {
    const Config of_phase = config.of_phase(i);
    const bool same_length = was_.sequence_length == of_phase.sequence_length();
    plans_.push_back(plan_run(of_phase, device.choice.traits, limit,
                              {.micro_batch = same_place && same_length ? was_.micro_batch : 0,
                               .shard = same_place ? was_.shard : std::nullopt,
                               .replicas = same_place ? was_.replicas : 0,
                               .mlp_chunk = same_place && same_length ? was_.mlp_chunk : std::nullopt}));
    if (i >= first && !plans_.back().fits())
      throw OutOfMemory(phase_name(config, i) + refusal(of_phase, plans_.back(), checkpoint));
  }
}

// The data of later phases: too short for a longer sequence, it would end the run in the middle.
void OpenRun::check_later_data() const {
  for (size_t i = phase->index() + 1; i < config.phases(); ++i) {
    const RunData later(config.of_phase(i), now.shift);
    for (size_t s = 0; s < later.sources().size(); ++s)
      check(
          later.sources()[s].range.token_count == phase->data().sources()[s].range.token_count,
          "{}too little text in {} for a sequence to train on and one to hold out. Use more data, a shorter "
          "phase, or a larger data.validation_fraction",
          phase_name(config, i), later.sources()[s].stream.path().string());
  }
}

// Opens the data; compares it, and the configuration, with those of `checkpoint` if there is one.
void OpenRun::take_data(Checkpoint checkpoint) {
  ranks.enter_phase("the data", Timeout::kNone);
  const size_t first = config.phase_after(now.step);
  phase = std::make_unique<RunPhase>(config, first, plans_[first], now.shift);
  const RunData& data = phase->data();
  check_later_data();
  if (config.train.epochs > 0)
    config.epoch_steps = steps_of_epochs(config, data.train().sequences_per_epoch(), now);
  if (const std::string notice = warm_up_notice(config.steps(), config.optimizer); !notice.empty())
    add_notices({notice});
  check(now.step <= config.steps(), "{} is at step {}, and nothing is left to do: {}", paths.resumed.string(),
        now.step, advice_on_length(config));
  now.fingerprint = data.fingerprint();
  ranks.check_same_lines(lines_of(*now.fingerprint),
                         "all ranks have to read the same data: copy the files of one machine to the other");
  if (ranks.is_rank_0()) add_notices(data.verify());
  add_notices(data.packing_notices());
  add_notices(
      check_run({.config = config, .model = shape().model, .data = data, .resuming = checkpoint != nullptr}));
  if (!checkpoint) return;
  add_notices(compare_with_checkpoint(*checkpoint, was_, now, config, data));
  take_best(*checkpoint, was_, now, config);
  // A disk that got the checkpoint from others has no older ones.
  if (now.best && ranks.sum({now.best ? 1.0 : 0.0})[0] < static_cast<double>(ranks.size()))
    now.best.reset(), now.evaluations_since_best = 0;
}

// A choice has to fit into a sequence of every phase to come.
void OpenRun::take_tasks() {
  const Config::Evaluation& evaluation = config.evaluation;
  if (evaluation.tasks.empty()) return;
  int64_t shortest = shape().sequence_length;
  for (size_t i = phase->index(); i < plans_.size(); ++i)
    shortest = std::min(shortest, plans_[i].shape.sequence_length);
  tasks = read_tasks(evaluation.tasks, {.tokenizer = phase->data().tokenizer(),
                                        .vocab_size = shape().model.vocab_size,
                                        .sequence_length = shortest,
                                        .most_items = evaluation.task_items});
  std::string items;
  for (const Task& task : tasks)
    if (const std::string notice = notice_of_items_apart(task); !notice.empty()) add_notices({notice});
  for (const Task& task : tasks) items += fmt::format("{}: {} items; ", task.name, task.items.size());
  ranks.check_same(items, "the files of evaluation.tasks: all ranks have to read the same");
}

// Once for all phases, while the memory of the run is still free
void OpenRun::choose_gemms(bool resuming) {
  std::vector<RunShape> shapes;
  for (size_t i = phase->index(); i < plans_.size(); ++i) shapes.push_back(plans_[i].shape);
  const fs::path file = gemms_file(paths.folder);
  const bool kept = fs::exists(file);
  gemms_ = use_chosen_gemms(*device.backend, config, shapes, file, ranks, log.line());
  ranks.enter_phase("the setup");
  add_notices(gemms_.notices);
  if (resuming && !kept && !gemms_.table.choices.empty())
    add_notices(
        {fmt::format("{} does not exist: the algorithms of GEMMs are chosen now, and the "
                     "bits of this run may differ from before",
                     file.string())});
}

void OpenRun::allocate(bool resuming) {
  // The system pins a few GB a second, and other ranks may have less to pin.
  if (shape().offload) ranks.enter_phase("pinning memory of the host", Timeout::kNone);
  if (device.mesh->shape() != shape().mesh) device.mesh = &ranks.connect(*device.backend, shape().mesh);
  phase->allocate({.backend = *device.backend,
                   .ranks = *device.mesh,
                   .recorded = !paths.profile.empty(),
                   .resuming = resuming});
}

void OpenRun::begin_next_phase() {
  const size_t next = phase->index() + 1;
  const RunShape& shape = plans_[next].shape;
  now.data_position = position_with_length(now, shape.sequence_length);
  now.recent = recent_of(now, config, shape);
  now.sequence_length = shape.sequence_length;
  now.micro_batch = shape.micro_batch;
  now.mlp_chunk = shape.mlp_chunk;
  now.best.reset();
  now.evaluations_since_best = 0;
  ranks.enter_phase("the next phase", Timeout::kNone);
  reopen(next);
  now.fingerprint = phase->data().fingerprint();  // documents are packed for this length
}

void OpenRun::go_back(const RunState& to) {
  now = to;
  ranks.enter_phase("the checkpoint before a bad step", Timeout::kNone);
  reopen(phase->index());
  add_notices(kept.keep_tokenizer(phase->data(), leads_disk()));
}

// From the checkpoint of now.step, or from the run's start, as another process would
void OpenRun::reopen(size_t index) {
  const fs::path checkpoint = paths.checkpoints / checkpoint_name(now.step);
  ranks.sum({0});  // all ranks wait for the checkpoint
  phase.reset();   // two phases need not fit together
  if (now.step > 0)
    present(run_folder_).bring_files(checkpoint, *device.backend, device.mesh->axis(Axis::kAll));
  phase = std::make_unique<RunPhase>(config, index, plans_[index], now.shift);
  phase->fetch_step(now.data_position, ranks.place(Axis::kData));
  allocate(/*resuming=*/true);
  load_weights(now.step > 0 ? &checkpoint : nullptr);
}

void OpenRun::load_weights(Checkpoint checkpoint) {
  ranks.enter_phase("the weights", Timeout::kNone);
  TrainState& state = phase->state();
  Arena::Phase loading(phase->arena(), "load weights");
  const OtherModels others(config, ranks, paths.resumed);
  others.load(*phase, was_, now, /*at_start=*/!checkpoint);
  if (checkpoint) {
    if (leads_disk()) {
      check_undamaged(*checkpoint);
      kept.take_over(*checkpoint);
    }
    load_checkpoint(
        *checkpoint, state,
        {.folder = config.train.init_from, .options = folder_options(config), .checksum = now.base});
    return;
  }
  const bool has_weights = !config.train.init_from.empty();
  state.initialize(static_cast<uint64_t>(config.train.seed),
                   has_weights ? InitialOf::kAdapters : InitialOf::kAll);
  if (!has_weights) return;
  const fs::path source = config.train.init_from;
  if (leads_disk()) {
    check_undamaged(source, CheckpointPart::kWeights);
    kept.take_over(source);
  }
  if (!config.train.lora) {
    tessera::load_weights(source, state, folder_options(config));
    return;
  }
  now.base = load_base(source, state, folder_options(config));
  ranks.check_same(now.base, "a checksum of train.init_from: all ranks have to start from the same weights");
  others.check_base(phase->data(), now.base);
}

RunDescription OpenRun::description() const {
  return {.config = config,
          .shape = shape(),
          .device = device.choice,
          .data = phase->data(),
          .peak_flops = device.peak_flops,
          .folder = paths.folder.string(),
          .gemms = gemms_.summary};
}

}  // namespace tessera

#include "train/run/replay.h"

#include <unistd.h>

#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "kernels/base/status_line.h"
#include "train/config/load_config.h"
#include "train/memory/data_weights.h"
#include "train/memory/plan_advice.h"
#include "train/run/checkpoint_parts.h"
#include "train/run/gemm_choices.h"
#include "train/run/verify_checkpoint.h"
#include "train/session/device.h"
#include "train/session/equal_work.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

constexpr double kReplayQuietSeconds = 60;
constexpr int64_t kReplayColumns = 2;  // that further lines of a text are indented by

std::string ranks_text(int64_t ranks) { return fmt::format("{} {}", ranks, ranks == 1 ? "rank" : "ranks"); }

// What a rank has of the step
class Replay {
 public:
  Replay(const Config& config, const BadStepFolder& folder, RankGroup& ranks);
  int run();  // the exit code

 private:
  void bring_files();
  RunPlan plan() const;
  std::vector<int64_t> own_places() const;
  void load(const RunPlan& plan);
  std::string setting_text() const;

  Config config_;
  const BadStepFolder& folder_;
  const KeptStep& kept_;
  RankGroup& ranks_;
  StatusLine line_;
  RunState before_;
  DeviceChoice device_;
  std::unique_ptr<Backend> backend_;
  std::optional<Arena> arena_;
  std::optional<TrainState> state_;
};

Replay::Replay(const Config& config, const BadStepFolder& folder, RankGroup& ranks)
    : config_(config),
      folder_(folder),
      kept_(folder.kept),
      ranks_(ranks),
      line_(STDOUT_FILENO, kReplayQuietSeconds, ranks.is_rank_0()),
      before_(read_state(folder.checkpoint, model_config(config), /*least_step=*/0)),
      device_(choose_device(config.device, ranks.local_rank())) {
  config_.nodes = ranks.nodes();
  ranks.check_same(name_of(device_.traits.device), "where to compute; name it with --set device=cuda or cpu");
  bring_files();
  if (ranks.is_rank_0()) check_undamaged(folder.checkpoint);
}

// Machines without a shared disk wrote a part of the checkpoint each. Brings each the files that it lacks.
void Replay::bring_files() {
  const Disks disks = find_disks(folder_.checkpoint, ranks_);
  if (!disks.several()) return;
  const OnDisks on{.folder = folder_.checkpoint.parent_path(),
                   .rank = ranks_.rank(),
                   .disks = disks,
                   .exchange = [this](std::string_view mine) { return ranks_.exchange(mine); }};
  newest_on_disks(on);  // an error names what no machine has
  const std::vector<MovedFile> files = files_to_move(on, folder_.checkpoint);
  if (files.empty()) return;
  ranks_.enter_phase("files of the checkpoint", Timeout::kNone);
  backend_ = make_backend(device_.traits);
  const Mesh& mesh = ranks_.connect(*backend_, {.data = ranks_.size()});
  move_files(on, folder_.checkpoint, files, *backend_, mesh.axis(Axis::kAll));
  ranks_.disconnect();
  line_.notice(fmt::format("{} is not on a shared disk: what each machine lacked came from the others",
                           folder_.checkpoint.parent_path().string()));
}

RunPlan Replay::plan() const {
  const Config of_phase = config_.of_phase(config_.phase_after(kept_.bad.step - 1));
  const bool same_place = before_.device == device_.traits.device && before_.ranks == config_.ranks;
  const RunPlan chosen = plan_run(of_phase, device_.traits, ranks_.memory_limit(device_.traits.device),
                                  {.micro_batch = same_place ? before_.micro_batch : 0,
                                   .shard = same_place ? before_.shard : std::nullopt,
                                   .replicas = same_place ? before_.replicas : 0,
                                   .mlp_chunk = same_place ? before_.mlp_chunk : std::nullopt});
  const RunPlan plan = with_weights(chosen, !folder_.batch.weights.empty());
  if (!plan.fits()) throw OutOfMemory(refusal(of_phase, plan, /*resuming=*/true));
  const auto& [found, wanted] = std::pair(std::ssize(kept_.origins), plan.shape.sequences_per_step());
  check(found == wanted && kept_.sequence_length == plan.shape.sequence_length,
        "the step has {} sequences of {} tokens, and by this configuration it would have {} of {}: leave "
        "train.tokens_per_step and train.sequence_length as they were",
        found, kept_.sequence_length, wanted, plan.shape.sequence_length);
  return plan;
}

// Of this rank's sequences in the step
std::vector<int64_t> Replay::own_places() const {
  const RunShape& shape = present(state_).shape();
  const int64_t T = shape.sequence_length;
  const auto lengths_of = [&](int64_t place) {
    return document_lengths(SequencesView(folder_.batch).tokens_from(place * T, T).documents);
  };
  return places_of_rank(shape, ranks_.place(Axis::kData), work_of_step(shape, lengths_of));
}

void Replay::load(const RunPlan& plan) {
  ranks_.enter_phase("the setup");
  backend_ = make_backend(device_.traits);
  const Mesh& mesh = ranks_.connect(*backend_, plan.shape.mesh);
  const GemmChoices gemms = use_chosen_gemms(*backend_, config_, {plan.shape}, folder_.gemms, ranks_, line_);
  for (const std::string& notice : gemms.notices) line_.notice(notice);
  ranks_.enter_phase("the weights", Timeout::kNone);
  arena_.emplace(make_arena(device_.traits));
  arena_->reserve(plan.peak());
  state_.emplace(*backend_, *arena_, plan.shape, mesh.step_axes());
  load_checkpoint(
      folder_.checkpoint, *state_,
      {.folder = config_.train.init_from, .options = folder_options(config_), .checksum = before_.base});
  if (state_->has_reference())
    load_fixed(config_.train.reference_folder(), state_->reference(), folder_options(config_));
  if (state_->has_teacher()) load_fixed(config_.train.teacher, state_->teacher(), folder_options(config_));
  state_->set_skipped_updates(before_.skipped_updates);
}

// Where the step is computed in another way than it was
std::string Replay::setting_text() const {
  if (config_.ranks == kept_.ranks && device_.traits.name == kept_.device) return "";
  return fmt::format(
      "\nIt was computed by {} on {}: the same number on the same device rounds as it did, and tells "
      "more of its hardware",
      ranks_text(kept_.ranks), kept_.device);
}

int Replay::run() {
  load(plan());
  const int64_t T = kept_.sequence_length;
  Sequences own;
  std::vector<int64_t> positions;
  for (const int64_t place : own_places()) {
    append(own, SequencesView(folder_.batch).tokens_from(place * T, T));
    positions.push_back(kept_.position + place);
  }
  const StepInputs inputs{.ranks = ranks_,
                          .state = present(state_),
                          .own = own,
                          .own_positions = positions,
                          .position = kept_.position,
                          .optimizer = optimizer_config(config_),
                          .origin = [&](int64_t position, std::optional<int64_t>) {
                            return kept_.origins[static_cast<size_t>(position - kept_.position)];
                          }};
  line_.print_wrapped(fmt::format("step {}: {}", kept_.bad.step, kept_.bad.figures()), kReplayColumns);
  const ComputedAgain again = compute_again(inputs, kept_.bad);
  const bool bad = kept_.bad.is_bad(again.result);
  line_.print_wrapped(
      fmt::format("by {} on {}: the loss is {:.6g} and the gradient norm {:.6g}", ranks_text(config_.ranks),
                  device_.traits.name, again.result.loss, again.result.grad_norm),
      kReplayColumns);
  line_.print(again.text + setting_text());
  line_.print("the sequences with the highest losses:");
  for (const std::string& worst : worst_sequences(inputs)) line_.print("  " + worst);
  line_.print(bad ? "the step is bad again" : "the step is not bad this time");
  return bad ? 1 : 0;
}

}  // namespace

Config replay_config(const BadStepFolder& folder, const std::vector<std::string>& overrides) {
  return load_config(folder.checkpoint / kConfigFile, overrides, /*resume=*/true);
}

int replay(const Config& config, const BadStepFolder& folder, const World& world) {
  RankGroup ranks(world, config);
  std::optional<Replay> replay;  // outlives guard(): see RankGroup
  int exit_code = 1;
  ranks.guard([&] {
    exit_code = replay.emplace(config, folder, ranks).run();
    ranks.finish();
  });
  return exit_code;
}

}  // namespace tessera

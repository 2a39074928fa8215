#include "train/run/run_checkpoints.h"

#include "kernels/base/present.h"
#include "train/config/print_config.h"
#include "train/run/stop_signals.h"

namespace tessera {
namespace {

constexpr double kSecondsBeforeTrainingGoesOn = 1;  // a small checkpoint is on the disk by then

}  // namespace

RunCheckpoints::RunCheckpoints(OpenRun& run) : run_(run), newest_(run.now.step) {}

CheckpointOptions RunCheckpoints::options() const {
  return {.config = print_config(run_.config),
          .dtype = run_.config.checkpoint.dtype,
          .copied = run_.kept.copied,
          .token_ids = &run_.kept.token_ids,
          .base = run_.config.train.init_from,
          .base_is_kept = run_.base_is_kept,
          .file_bytes = run_.config.checkpoint.file_gib << 30,
          .replaces = run_.own_checkpoints().contains(run_.now.step),
          .check_folder = [this] { run_.check_folder(); },
          .barrier = [this] { run_.ranks.sum({0}); },
          .disks = run_.disks,
          .exchange = [this](std::string_view mine) { return run_.ranks.exchange(mine); }};
}

void RunCheckpoints::save() {
  Arena::Phase arena_phase(run_.phase->arena(), "checkpoint", MemoryRecording::kNone,
                           Arena::Phase::kRecordFirstFew);
  run_.ranks.enter_phase("a checkpoint", Timeout::kNone);
  set_stopping_point("this checkpoint");
  finish(/*waits=*/true);
  const Clock::time_point start = Clock::now();
  run_.log.sync();  // before the checkpoint: its step must not be newer than the last line on disk
  newest_ = run_.now.step;
  auto checkpoint =
      std::make_unique<PendingCheckpoint>(run_.paths.checkpoints, run_.phase->state(), run_.now, options());
  const bool keeps_best = run_.config.checkpoint.keep_best && run_.now.best;
  pending_ = {.checkpoint = std::move(checkpoint),
              .keep = {.newest = run_.config.checkpoint.keep,
                       .every = run_.config.checkpoint.keep_every,
                       .best = keeps_best ? std::optional(present(run_.now.best).step) : std::nullopt,
                       .before_bad_steps = run_.now.before_bad_steps},
              .step = run_.now.step,
              .is_best = keeps_best && present(run_.now.best).step == run_.now.step,
              .start = start};
  if (written_within(kSecondsBeforeTrainingGoesOn)) finish(/*waits=*/true);
}

// Ranks with several disks finish a checkpoint together: all have to agree.
bool RunCheckpoints::written_within(double seconds) {
  const bool mine = pending_->checkpoint->done_within(seconds);
  if (!run_.disks.several()) return mine;
  return run_.ranks.sum({mine ? 1.0 : 0.0})[0] == static_cast<double>(run_.ranks.size());
}

void RunCheckpoints::finish(bool waits) {
  if (!pending_ || (!waits && !written_within(0))) return;
  if (waits) run_.ranks.enter_phase("a checkpoint", Timeout::kNone);
  const Pending done = std::move(*pending_);
  pending_.reset();
  const std::filesystem::path path = done.checkpoint->finish();
  if (!run_.disks.leads(run_.ranks.rank())) return;
  run_.own_checkpoints().insert(done.step);
  std::vector<std::string> left =
      prune_checkpoints(run_.paths.checkpoints, done.keep,
                        {.own = &run_.own_checkpoints(), .check = [this] { run_.check_folder(); }});
  left.insert(left.begin(), done.checkpoint->leftovers().begin(), done.checkpoint->leftovers().end());
  run_.log.checkpoint(path, done.step, seconds_since(done.start), done.is_best);
  for (const std::string& failure : left)
    if (told_.insert(failure).second)
      run_.log.line().notice(
          fmt::format("an older checkpoint could not be removed: {}. {} is whole, and the run goes on. It "
                      "tries again with each checkpoint, and takes more space until then",
                      failure, path.string()));
}

}  // namespace tessera

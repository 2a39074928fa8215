#include "train/run/bad_step_handler.h"

#include "kernels/base/check.h"
#include "kernels/base/system_error.h"
#include "train/run/bad_step_folder.h"
#include "train/session/from_config.h"

namespace tessera {

namespace fs = std::filesystem;

BadStepHandler::Done BadStepHandler::handle(BadStep bad, double seconds) {
  RunPhase& phase = *run_.phase;
  const AxisPlace place = run_.ranks.place(Axis::kData);
  const int64_t position = run_.now.data_position;
  Sequences own;
  phase.fetch_step(position, place, own);
  const StepInputs inputs{
      .ranks = run_.ranks,
      .state = phase.state(),
      .own = own,
      .own_positions = phase.positions_of_step(position, place),
      .position = position,
      .optimizer = optimizer_config(run_.config),
      .origin = [&](int64_t at, std::optional<int64_t> token) { return phase.data().origin(at, token); }};
  const bool spike = bad.is_spike();
  bad.worst = worst_sequences(inputs);
  if (spike) bad.scores = scores_of(run_.now.recent, bad.loss, bad.grad_norm);
  if (checkpoints_.newest() > 0) run_.now.before_bad_steps.insert(checkpoints_.newest());
  const OnBadStep& rule = run_.config.train.on_bad_step;
  std::string used_up;
  if (spike ? rule.spike == OnSpike::kSkip : rule.nonfinite == OnNonfinite::kSkip) {
    if (run_.now.skipped_updates < rule.most_skips) return skip(bad, seconds);
    used_up =
        fmt::format("skipped {} steps, as many as train.on_bad_step.most_skips", run_.now.skipped_updates);
  } else if (spike ? rule.spike == OnSpike::kRewind : rule.nonfinite == OnNonfinite::kRewind) {
    if (run_.now.rewinds < rule.most_rewinds) return go_back(bad, seconds);
    used_up = fmt::format("gone back {} times, as often as train.on_bad_step.most_rewinds", run_.now.rewinds);
  }
  stop_at(bad, inputs, used_up);
}

BadStepHandler::Done BadStepHandler::skip(const BadStep& bad, double seconds) {
  run_.phase->state().take_back_step();
  run_.now.step = bad.step;
  run_.now.data_position += run_.shape().sequences_per_step();
  ++run_.now.skipped_updates;
  run_.log.skipped_step(bad, seconds);
  return Done::kSkipped;
}

// To the newest checkpoint, or to the start of a run that has none. The data goes on after the bad step: the
// sequences since the checkpoint would lead to the same weights again, since the bad step made no update.
BadStepHandler::Done BadStepHandler::go_back(const BadStep& bad, double seconds) {
  checkpoints_.finish(/*waits=*/true);
  RunState to = checkpoints_.at_newest();
  const int64_t position = run_.now.data_position + run_.shape().sequences_per_step();
  to.passed_over_tokens += (position - to.data_position) * run_.shape().sequence_length;
  to.data_position = position;
  ++to.rewinds;
  to.before_bad_steps = run_.now.before_bad_steps;
  run_.go_back(to);
  run_.log.go_back(bad, seconds);
  return Done::kWentBack;
}

// `used_up`: what the run may not do again, if the rule is not to stop
void BadStepHandler::stop_at(const BadStep& bad, const StepInputs& inputs, const std::string& used_up) {
  checkpoints_.finish(/*waits=*/true);
  std::string why = compute_again(inputs, bad).text;
  if (bad.is_spike()) why += "\nThe sequences with the highest losses:";
  for (const std::string& worst : bad.worst)
    if (bad.is_spike()) why += "\n  " + worst;
  if (!used_up.empty())
    why += fmt::format("\nThe run has {} allows", used_up);
  else if (checkpoints_.newest() > 0)
    why +=
        fmt::format("\nTo go on without its sequences: --resume --set train.on_bad_step.{}=skip", bad.kind());
  const std::string message = fmt::format(
      "step {}: {}. The weights were not changed by this step; the last checkpoint is {}. A lower "
      "optimizer.learning_rate, a longer warm-up or clipping (optimizer.max_grad_norm) usually helps.\n{}",
      bad.step, bad.figures(), latest_checkpoint(run_.paths.checkpoints).value_or("none").string(), why);
  fs::path kept;
  try {
    kept = keep(bad, message);
  } catch (const CommunicationError&) {
    throw;
  } catch (const std::exception& error) {
    fail("{}\nThe step is not kept for ./train --replay: {}", message, error_text(error));
  }
  fail("{}\nTo compute the step once more: ./train --replay {}", message, kept.string());
}

// In a folder; see bad_step_folder.h
fs::path BadStepHandler::keep(const BadStep& bad, const std::string& report) {
  const RunData& data = run_.phase->data();
  const int64_t n = run_.shape().sequences_per_step(), first = run_.now.data_position;
  KeptStep kept{.bad = bad,
                .position = first,
                .sequence_length = run_.shape().sequence_length,
                .origins = {},
                .ranks = run_.ranks.size(),
                .device = run_.device.choice.traits.name,
                .last_checkpoint = checkpoints_.newest()};
  Sequences batch;
  if (run_.disks.leads(run_.ranks.rank())) {
    data.train().fetch(first, n, batch);
    for (int64_t i = 0; i < n; ++i) kept.origins.push_back(data.origin(first + i));
  }
  return write_bad_step({.ranks = run_.ranks,
                         .state = run_.phase->state(),
                         .before = run_.now,
                         .options = checkpoints_.options(),
                         .run = run_.paths.folder,
                         .kept = kept,
                         .batch = batch,
                         .report = report});
}

}  // namespace tessera

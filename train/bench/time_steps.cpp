#include "train/bench/time_steps.h"

#include <algorithm>
#include <chrono>

#include "kernels/base/random.h"
#include "kernels/timer.h"

namespace tessera {
namespace {

// Random tokens. For a loss of pairs each sequence is one pair, of two halves.
Sequences random_sequences(const RunShape& shape) {
  const int64_t T = shape.sequence_length, count = shape.sequences_per_rank() * T;
  std::vector<int32_t> tokens(static_cast<size_t>(count) + 1);
  const Philox random(1, 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(random.bits(i)[0] % static_cast<uint32_t>(shape.model.vocab_size));
  Sequences made{.tokens = {tokens.begin(), tokens.end() - 1},
                 .targets = {tokens.begin() + 1, tokens.end()},
                 .documents = {}};
  if (!shape.loss.pairs) return made;
  const DocumentKind first =
      shape.loss.pairs->has_labels() ? DocumentKind::kDesirable : DocumentKind::kChosen;
  for (int64_t n = 0; n < count; ++n) {
    const bool second = n % T >= T / 2;
    made.documents.insert(made.documents.end(), {static_cast<int32_t>(second ? T / 2 : 0),
                                                 static_cast<int32_t>(second ? T : T / 2)});
    made.kinds.push_back(static_cast<int32_t>(second ? second_after(first) : first));
  }
  made.log_probs.resize(made.tokens.size());
  return made;
}

}  // namespace

StepTimes time_steps(Backend& be, Arena& arena, const RunShape& shape, const OptimizerConfig& optimizer,
                     const TimedSteps& of) {
  using Clock = std::chrono::steady_clock;
  TrainState state(be, arena, shape, of.axes);
  const auto take_waited = [&] {
    double seconds = 0;
    for (Communicator* axis : of.axes.distinct()) seconds += axis->take_waited_seconds();
    return seconds;
  };
  state.initialize(1);
  if (state.has_reference()) state.reference().initialize(2);
  if (state.has_teacher()) state.teacher().initialize(2);
  const Sequences sequences = random_sequences(shape);
  const int64_t counted = shape.loss.pairs ? shape.sequences_per_step() : shape.tokens_per_step();
  const int64_t micro_steps = shape.micro_steps;
  std::vector<std::unique_ptr<Timer>> timers;  // one for each micro-batch of a step
  for (int64_t m = 0; m < micro_steps; ++m) timers.push_back(make_timer(state.stream()));
  const auto next_timer = [&](int64_t done) {
    if (done > 0) timers[static_cast<size_t>(done - 1)]->stop();
    if (done < micro_steps) timers[static_cast<size_t>(done)]->start();
    return true;
  };
  StepTimes result;
  for (int64_t i = 0; i < of.warmup + of.steps; ++i) {
    Arena::Phase phase(arena, "step", i + 1, Arena::Phase::kRecordFirstFew);
    if (of.before_step) of.before_step(i - of.warmup);
    if (i == of.warmup) take_waited();
    const Clock::time_point start = Clock::now();
    next_timer(0);
    state.step(sequences, counted, optimizer, 1e-4, i + 1, next_timer);
    state.finish_step();
    if (i < of.warmup) continue;
    result.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    double update = result.seconds.back();
    for (int64_t m = 0; m < micro_steps; ++m) {
      const double seconds = timers[static_cast<size_t>(m)]->milliseconds() / 1e3;
      if (micro_steps < 3 || (m > 0 && m + 1 < micro_steps)) result.micro_batches.push_back(seconds);
      update -= seconds;
    }
    result.updates.push_back(std::max(update, 0.0));
  }
  result.waited = take_waited() / static_cast<double>(of.steps);
  std::ranges::sort(result.seconds);
  std::ranges::sort(result.micro_batches);
  std::ranges::sort(result.updates);
  return result;
}

}  // namespace tessera

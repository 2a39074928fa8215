#include "train/bench/time_steps.h"

#include <algorithm>
#include <chrono>

#include "kernels/base/random.h"

namespace tessera {

StepTimes time_steps(Backend& be, Arena& arena, const RunShape& shape, const OptimizerConfig& optimizer,
                     const TimedSteps& of) {
  using Clock = std::chrono::steady_clock;
  TrainState state(be, arena, shape, of.comm, of.context);
  const auto take_waited = [&] {  // axes of the same ranks are one communicator
    double seconds = of.comm ? of.comm->take_waited_seconds() : 0;
    if (of.context && of.context != of.comm) seconds += of.context->take_waited_seconds();
    return seconds;
  };
  state.initialize(1);
  std::vector<int32_t> tokens(static_cast<size_t>(shape.sequences_per_rank() * shape.sequence_length) + 1);
  const Philox random(1, 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(random.bits(i)[0] % static_cast<uint32_t>(shape.model.vocab_size));
  const auto inputs = std::span(tokens).first(tokens.size() - 1),
             targets = std::span(tokens).last(tokens.size() - 1);
  StepTimes result;
  for (int64_t i = 0; i < of.warmup + of.steps; ++i) {
    Arena::Phase phase(arena, "step", i + 1, Arena::Phase::kRecordFirstFew);
    if (of.before_step) of.before_step(i - of.warmup);
    if (i == of.warmup) take_waited();
    const Clock::time_point start = Clock::now();
    state.step({.tokens = inputs, .targets = targets}, shape.tokens_per_step(), optimizer, 1e-4, i + 1);
    state.finish_step();
    if (i >= of.warmup) result.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  result.waited = take_waited() / static_cast<double>(of.steps);
  std::sort(result.seconds.begin(), result.seconds.end());
  return result;
}

}  // namespace tessera

#include "train/bench/time_steps.h"

#include <algorithm>
#include <chrono>

#include "kernels/base/random.h"

namespace tessera {

std::vector<double> time_steps(Backend& be, Arena& arena, const RunShape& shape,
                               const OptimizerConfig& optimizer, int64_t warmup, int64_t steps,
                               OpTimes* times) {
  using Clock = std::chrono::steady_clock;
  TrainState state(be, arena, shape);
  state.initialize(1);
  std::vector<int32_t> tokens(static_cast<size_t>(shape.tokens_per_step()) + 1);
  const Philox random(1, 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(random.bits(i)[0] % static_cast<uint32_t>(shape.model.vocab_size));
  const auto inputs = std::span(tokens).first(tokens.size() - 1),
             targets = std::span(tokens).last(tokens.size() - 1);
  std::vector<double> seconds;
  for (int64_t i = 0; i < warmup + steps; ++i) {
    Arena::Phase phase(arena, "step", i + 1, Arena::Phase::kRecordFirstFew);
    if (i == warmup && times) times->clear();
    const Clock::time_point start = Clock::now();
    state.step(inputs, targets, optimizer, 1e-4, i + 1);
    state.finish_step();
    if (i >= warmup) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

}  // namespace tessera

#include "train/run/epochs.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace tessera {

int64_t steps_of_epochs(const Config& config, int64_t per_epoch, const RunState& now) {
  constexpr int64_t kMostSteps = 1'000'000'000;  // as train.steps
  const int64_t in_step = config.sequences_per_step();
  const double in_all = std::max(1.0, std::round(config.train.epochs * static_cast<double>(per_epoch)));
  check(in_all / static_cast<double>(in_step) <= static_cast<double>(kMostSteps - now.step),
        "train.epochs={} are {:.3g} sequences, in steps of {}: more than {} steps. Set fewer epochs, or a "
        "larger train.tokens_per_step",
        config.train.epochs, in_all, in_step, kMostSteps);
  const int64_t read = now.data_position - now.passed_over_tokens / config.sequence_length();
  const int64_t left = std::max<int64_t>(static_cast<int64_t>(in_all) - read, 0);
  return now.step + (left + in_step - 1) / in_step;
}

std::string length_of(const Config& config) {
  const double epochs = config.train.epochs;
  if (epochs == 0) return fmt::format("{} steps", config.steps());
  return fmt::format("{} {} = {} steps", epochs, epochs == 1 ? "epoch" : "epochs", config.steps());
}

std::string advice_on_length(const Config& config) {
  if (config.train.epochs == 0)
    return fmt::format("train.steps is {}. To continue, set a larger one with --set train.steps=N",
                       config.steps());
  return fmt::format("train.epochs is {}. To continue, set a larger one with --set train.epochs=E",
                     length_of(config));
}

}  // namespace tessera

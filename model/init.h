// Random initial weights, as GPT-2's: normal with standard deviation 0.02, and 0.02 / sqrt(2 L) for the two
// matrices of a block that write to the residual stream; biases 0, norms 1. Radford et al., "Language Models
// are Unsupervised Multitask Learners", 2019, section 2.3. The A of an adapter is uniform within
// 1 / sqrt(inputs), and its B is 0: PEFT's initial values, with which a model with adapters computes what it
// computes without them.
#pragma once

#include "model/params.h"

namespace tessera {

// The values of a parameter that is drawn from a normal distribution, as RandomNormal draws them. The padding
// after them is zero.
struct NormalValues {
  int64_t count;  // without the padding
  double deviation;
  uint64_t seed, stream;

  // Draws the values from number `first` on, as many as `y` has, and the lower bits of their masters, if
  // `low` is given.
  RandomNormal to(const Tensor& y, const Tensor& low, int64_t first) const {
    return {.y = y, .low = low, .deviation = deviation, .seed = seed, .stream = stream, .first = first};
  }
};
using NormalSink = std::function<void(const ParamPlace& place, const NormalValues& values)>;

// Receives the initial values. Most of a large model is normal, and a device draws such values faster than
// the host.
struct InitialSinks {
  ParamSink values;
  NormalSink normal = {};  // none: `values` gets the normal ones as well
};

enum class InitialOf : uint8_t { kAll, kAdapters };

// The values depend only on the seed, not on the device or the rank.
void init_weights(const ModelConfig& config, uint64_t seed, const InitialSinks& sinks,
                  InitialOf which = InitialOf::kAll);

}  // namespace tessera

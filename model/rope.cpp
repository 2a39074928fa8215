#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"

namespace tessera {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double llama3(const Rope& rope, double context, double frequency) {
  const double waves = context * frequency / kTurn;  // within the original context
  const double share =
      std::clamp((waves - rope.low_frequency) / (rope.high_frequency - rope.low_frequency), 0.0, 1.0);
  return (1 - share) * frequency / rope.factor + share * frequency;
}

// The index i, not a whole number, whose pair turns so often within the original context
double yarn_index(const Rope& rope, double context, double D, double turns) {
  return D * std::log(context / (turns * kTurn)) / (2 * std::log(rope.theta));
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config) {
  const Rope& rope = config.rope;
  const auto D = static_cast<double>(config.head_dim);
  const auto context =
      static_cast<double>(rope.original_context > 0 ? rope.original_context : config.context);
  double low = std::max(std::floor(yarn_index(rope, context, D, rope.beta_fast)), 0.0);
  double high = std::min(std::ceil(yarn_index(rope, context, D, rope.beta_slow)), D - 1);
  if (low == high) high += 0.001;  // a step instead of a ramp
  std::vector<double> frequencies;
  for (int64_t i = 0; i < config.head_dim / 2; ++i) {
    const double plain = std::pow(rope.theta, -2 * static_cast<double>(i) / D);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        frequencies.push_back(plain);
        break;
      case RopeScaling::kLinear:
        frequencies.push_back(plain / rope.factor);
        break;
      case RopeScaling::kLlama3:
        frequencies.push_back(llama3(rope, context, plain));
        break;
      case RopeScaling::kYarn: {
        const double slow = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequencies.push_back(slow * plain / rope.factor + (1 - slow) * plain);
        break;
      }
    }
  }
  return frequencies;
}

double rope_attention_factor(const Rope& rope) {
  if (rope.scaling != RopeScaling::kYarn) return 1;
  if (rope.attention_factor > 0) return rope.attention_factor;
  return rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1;
}

void fill_angles(const ModelConfig& config, int64_t positions, std::span<float> out) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const double factor = rope_attention_factor(config.rope);
  const int64_t pairs = std::ssize(frequencies);
  check(std::ssize(out) == positions * pairs * 2,
        "rotary angles: {} positions of {} pairs do not fit in {} values", positions, pairs, out.size());
#pragma omp parallel for
  for (int64_t t = 0; t < positions; ++t)
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(t) * frequencies[static_cast<size_t>(i)];
      float* pair = out.data() + (t * pairs + i) * 2;
      pair[0] = static_cast<float>(factor * std::cos(angle));
      pair[1] = static_cast<float>(factor * std::sin(angle));
    }
}

}  // namespace tessera

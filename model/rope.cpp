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
double yarn_index(const Rope& rope, double context, double R, double turns) {
  return R * std::log(context / (turns * kTurn)) / (2 * std::log(rope.theta));
}

int64_t original_context(const ModelConfig& config) {
  return config.rope.original_context > 0 ? config.rope.original_context : config.context;
}

// The divisors of longrope. Error: others than one for each pair
const std::vector<double>& longrope_factors(const ModelConfig& config, int64_t sequence_length) {
  const bool is_long = sequence_length > original_context(config);
  const std::vector<double>& factors = is_long ? config.rope.long_factors : config.rope.short_factors;
  check(std::ssize(factors) == config.rotated_channels() / 2,
        "model.rope.{} has {} numbers; expected one for each pair of channels that is rotated, {}",
        is_long ? "long_factors" : "short_factors", factors.size(), config.rotated_channels() / 2);
  return factors;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& config, int64_t sequence_length) {
  const Rope& rope = config.rope;
  const int64_t rotated = config.rotated_channels();
  const auto R = static_cast<double>(rotated);
  const auto context = static_cast<double>(original_context(config));
  std::vector<double> divisors;
  if (rope.scaling == RopeScaling::kLongrope) divisors = longrope_factors(config, sequence_length);
  const double first = yarn_index(rope, context, R, rope.beta_fast),
               last = yarn_index(rope, context, R, rope.beta_slow);
  const double low = std::max(rope.truncate ? std::floor(first) : first, 0.0);
  double high = std::min(rope.truncate ? std::ceil(last) : last, R - 1);
  if (low == high) high += 0.001;  // a step instead of a ramp
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const double plain = std::pow(rope.theta, -2 * static_cast<double>(i) / R);
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
      case RopeScaling::kLongrope:
        frequencies.push_back(plain / divisors[static_cast<size_t>(i)]);
        break;
    }
  }
  return frequencies;
}

double rope_attention_factor(const ModelConfig& config) {
  const Rope& rope = config.rope;
  if (rope.scaling != RopeScaling::kYarn && rope.scaling != RopeScaling::kLongrope) return 1;
  if (rope.attention_factor > 0) return rope.attention_factor;
  if (rope.scaling == RopeScaling::kYarn) return rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1;
  const auto original = static_cast<double>(original_context(config));
  return longrope_attention_factor(static_cast<double>(config.context) / original, original);
}

double longrope_attention_factor(double factor, double original_context) {
  return factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original_context)) : 1;
}

Tensor allocate_angles(const Stream& stream, Arena& arena, const ModelConfig& config,
                       const AngleTable& table) {
  if (config.positions != Positions::kRope) return {};
  const int64_t positions = table.positions;
  const int64_t pairs = config.rotated_channels() / 2;
  const Shape shape{positions, pairs, 2};
  const Tensor angles = arena.alloc(MemoryTag::kWorkspace, "rotary angles", DType::kF32, shape);
  if (angles.data == nullptr) return angles;  // a plan
  const std::vector<double> frequencies = rope_frequencies(config, table.sequence_length);
  const double factor = rope_attention_factor(config);
  std::vector<float> host(static_cast<size_t>(shape.numel()));
#pragma omp parallel for
  for (int64_t t = 0; t < positions; ++t)
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(t) * frequencies[static_cast<size_t>(i)];
      float* pair = host.data() + (t * pairs + i) * 2;
      pair[0] = static_cast<float>(factor * std::cos(angle));
      pair[1] = static_cast<float>(factor * std::sin(angle));
    }
  stream.run(Copy{{host.data(), DType::kF32, shape, Device::kCpu}, angles});
  stream.synchronize();
  return angles;
}

int64_t short_context(const ModelConfig& config) { return original_context(config); }

Tensor allocate_angles_by_length(const Stream& stream, Arena& arena, const ModelConfig& config,
                                 const Tensor& of_long) {
  const int64_t positions = of_long.shape[0], of_short = short_context(config);
  const Tensor angles =
      allocate_angles(stream, arena, config, {.positions = positions, .sequence_length = of_short});
  stream.run(Copy{of_long.rows(of_short, positions - of_short), angles.rows(of_short, positions - of_short)});
  return angles;
}

Tensor allocate_local_angles(const Stream& stream, Arena& arena, const ModelConfig& config,
                             const AngleTable& table) {
  if (config.rope.local_theta == 0 || config.window.all_full()) return {};
  ModelConfig local = config;
  local.rope = {.theta = config.rope.local_theta};
  return allocate_angles(stream, arena, local, table);
}

}  // namespace tessera

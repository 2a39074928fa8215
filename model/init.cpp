#include "model/init.h"

#include <cmath>

#include "kernels/base/random.h"

namespace tessera {
namespace {

// fp32 on the host; the padding is zero
void fill(const ParamInfo& info, int64_t filled, const Philox& random, float* values) {
  if (info.init == Init::kZero || info.init == Init::kOne) {
    std::fill_n(values, filled, info.init == Init::kOne ? 1.0f : 0.0f);
  } else {
    const double bound = 1 / std::sqrt(static_cast<double>(info.shape[-1]));
    for (int64_t i = 0; i < filled; ++i)
      values[i] = static_cast<float>(bound * (2 * random.uniform(static_cast<uint64_t>(i)) - 1));
  }
}

void fill(const NormalValues& normal, float* values) {
  const Philox random(normal.seed, normal.stream);
#pragma omp parallel for
  for (int64_t i = 0; i < normal.count; ++i)
    values[i] = static_cast<float>(normal.deviation * random.normal(static_cast<uint64_t>(i)));
}

}  // namespace

void init_weights(const ModelConfig& config, uint64_t seed, const InitialSinks& sinks, InitialOf which) {
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers));
  uint64_t stream = 0;
  for (const ParamPlace& place : ParamLayout(config, 1).places) {
    const ParamInfo& info = place.info;
    const uint64_t own_stream = stream++;
    if (which == InitialOf::kAdapters && info.adapter == AdapterMatrix::kNone) continue;
    const int64_t filled = info.shape.numel() / info.shape[0] * (info.shape[0] - info.padding);
    const bool is_normal = info.init == Init::kNormal || info.init == Init::kNormalResidual;
    const NormalValues normal{.count = filled,
                              .deviation = info.init == Init::kNormalResidual ? residual : 0.02,
                              .seed = seed,
                              .stream = own_stream};
    if (is_normal && sinks.normal) {
      sinks.normal(place, normal);
      continue;
    }
    Arena staging = Arena::host();
    const Tensor host = staging.alloc(MemoryTag::kWeights, info.name, DType::kF32, info.shape);
    float* values = host.as<float>();
    if (is_normal)
      fill(normal, values);
    else
      fill(info, filled, Philox(seed, own_stream), values);
    std::fill(values + filled, values + info.shape.numel(), 0.0f);
    sinks.values(place, host);
  }
}

}  // namespace tessera

#include "model/init.h"

#include <cmath>

#include "kernels/base/random.h"

namespace tessera {

void init_weights(const ModelConfig& config, uint64_t seed, const ParamSink& sink) {
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers));
  uint64_t stream = 0;
  for (const ParamPlace& place : ParamLayout(config, 1).places) {
    const ParamInfo& info = place.info;
    Arena staging = Arena::host();
    const Tensor host = staging.alloc(MemoryTag::kWeights, info.name, DType::kF32, info.shape);
    const int64_t filled = info.shape.numel() / info.shape[0] * (info.shape[0] - info.padding);
    float* values = host.as<float>();
    const Philox random(seed, stream++);
    if (info.init == Init::kZero || info.init == Init::kOne) {
      std::fill_n(values, filled, info.init == Init::kOne ? 1.0f : 0.0f);
    } else if (info.init == Init::kUniform) {
      const double bound = 1 / std::sqrt(static_cast<double>(info.shape[1]));
      for (int64_t i = 0; i < filled; ++i)
        values[i] = static_cast<float>(bound * (2 * random.uniform(static_cast<uint64_t>(i)) - 1));
    } else {
      const double deviation = info.init == Init::kNormal ? 0.02 : residual;
#pragma omp parallel for
      for (int64_t i = 0; i < filled; ++i) values[i] = static_cast<float>(deviation * random.normal(i));
    }
    std::fill(values + filled, values + info.shape.numel(), 0.0f);
    sink(place, host);
  }
}

}  // namespace tessera

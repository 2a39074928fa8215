#include "kernels/base/random.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void run(const RandomNormal& a, const Launch& /*on*/) {
  const Philox random(a.seed, a.stream);
  float* y = a.y.as<float>();
  const int64_t count = a.y.numel();
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i)
    y[i] = static_cast<float>(a.deviation * random.normal(static_cast<uint64_t>(a.first + i)));
}

}  // namespace tessera::cpu

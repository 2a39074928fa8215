#include <bit>

#include "kernels/base/master.h"
#include "kernels/base/random.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void run(const RandomNormal& a, const Launch& /*on*/) {
  const Philox random(a.seed, a.stream);
  const auto value = [&](int64_t i) {
    return static_cast<float>(a.deviation * random.normal(static_cast<uint64_t>(a.first + i)));
  };
  const int64_t count = a.y.numel();
  if (a.y.dtype == DType::kF32) {
    float* y = a.y.as<float>();
#pragma omp parallel for
    for (int64_t i = 0; i < count; ++i) y[i] = value(i);
    return;
  }
  auto *y = a.y.as<uint16_t>(), *low = a.low.as<uint16_t>();
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) {
    const SplitMaster split = split_master(std::bit_cast<uint32_t>(value(i)));
    y[i] = split.weight;
    if (low) low[i] = split.low;
  }
}

}  // namespace tessera::cpu

// The norm of gradients whose parts have norms of their own (GlobalNorm), as those who decide by it read it.
#pragma once

#include <cstdint>

namespace tessera::cuda {

// The root of the sum of squares. In double, so that no square overflows or vanishes.
__device__ __forceinline__ float norm_of_parts(const float* norms, int64_t parts) {
  if (parts == 1) return *norms;
  double squares = 0;
  for (int64_t part = 0; part < parts; ++part) squares += static_cast<double>(norms[part]) * norms[part];
  return static_cast<float>(sqrt(squares));
}

}  // namespace tessera::cuda

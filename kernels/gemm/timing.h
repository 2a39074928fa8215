// Measures which of a library's algorithms for a GEMM is the fastest on this device.
#pragma once

#include <vector>

#include "kernels/gemm/table.h"
#include "kernels/stream.h"

namespace tessera {

struct GemmTime {
  GemmAlgorithm algorithm;
  double ms;  // median
};

// Times the library's algorithms for a GEMM. The result has them in the library's order; it is empty if there
// are none. They run in turn, on random data, and each finds an L2 cache without its operands. Algorithms
// that are clearly slower than the fastest run fewer times. The operands come from `arena` and are released.
// The stream needs a workspace as for any operation.
std::vector<GemmTime> time_algorithms(GemmLibrary& library, const Stream& stream, Arena& arena,
                                      const GemmKey& key);

// The first algorithm that is within kGemmNoise of the fastest. So it is the library's own first, unless
// another one is faster by more than the difference between two measurements. `times` must not be empty.
inline constexpr double kGemmNoise = 0.01;
GemmChoice choose(const std::vector<GemmTime>& times);

}  // namespace tessera

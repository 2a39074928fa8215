// Which of a library's algorithms for a GEMM is the fastest on this device: measured.
#pragma once

#include <vector>

#include "kernels/gemm/table.h"
#include "kernels/stream.h"

namespace tessera {

struct GemmTime {
  GemmAlgorithm algorithm;
  double ms;  // median
};

// Times the library's algorithms for a GEMM, in its order; none where it has none. All run in turn, on
// random data, each from an L2 cache that the one before did not leave its operands in; those that are
// clearly slower than the fastest run fewer times. The operands come from `arena` and are released. The
// stream has a workspace as for any operation.
std::vector<GemmTime> time_algorithms(GemmLibrary& library, const Stream& stream, Arena& arena,
                                      const GemmKey& key);

// The first that is within kGemmNoise of the fastest: so the library's own first, unless another is faster
// by more than what two measurements differ by. `times` are not empty.
inline constexpr double kGemmNoise = 0.01;
GemmChoice choose(const std::vector<GemmTime>& times);

}  // namespace tessera

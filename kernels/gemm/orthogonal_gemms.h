// The GEMMs of Orthogonalise: the same on both devices.
#pragma once

#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/ops.h"

namespace tessera {

struct OrthogonalGemms {
  Tensor first;             // [m, n] in the scratch: X before the first polynomial
  std::vector<Gemm> gemms;  // one after the other; the last one writes the matrix
};
std::vector<OrthogonalGemms> gemms_of(const Orthogonalise& op);  // of each matrix

}  // namespace tessera

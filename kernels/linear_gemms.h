// The matrix products of the operations on linear layers. CUDA runs them; a plan lists them, without data.
#pragma once

#include <functional>

#include "kernels/gemm.h"
#include "kernels/ops.h"

namespace tessera {

// y[N, O] = x[N, C] weight[O, C]^T. cuBLASLt's product does not fuse a GELU where the factors are in FP8:
// times the derivative it takes six times as long as without.
struct LinearForwardGemms {
  Gemm fused;       // in one pass with bias, add, or a GELU and its input; odd sizes may have no algorithm
  Gemm plain;       // with add alone, into the input of an activation where there is one
  bool fused_gelu;  // the fused one computes the activation
  std::optional<Gemm> own = {};  // the fused one with a GELU, for our own product: in FP8, too
};
LinearForwardGemms gemms_of(const LinearForward& a);

struct LinearBackwardGemms {
  std::optional<Gemm> dweight;      // dweight[O, C] += dy[N, O]^T x[N, C], and with it dbias
  std::optional<Gemm> fused_dx;     // dx, and times the derivative of a GELU; odd sizes may have no algorithm
  Gemm dx;                          // dx[N, C] = add[N, C] + dy[N, O] weight[O, C]
  std::optional<Gemm> own_dx = {};  // times the derivative of a GELU, for our own product: in FP8, too
};
LinearBackwardGemms gemms_of(const LinearBackward& a);

// In their order
using EachGemm = std::function<void(const Gemm&)>;
void each_gemm(const LoraForward& a, const EachGemm& run);
void each_gemm(const LoraBackward& a, const EachGemm& run);

// Those of any operation, where an algorithm exists for every product; none of attention, whose kernels are
// its own, and none of a backward of one row, which is no choice worth timing. Without data, and as for rows
// that are too many for a kernel for few.
void each_gemm(const AnyOp& op, const EachGemm& see);

}  // namespace tessera

// The GEMMs of the operations on linear layers. CUDA runs them; a plan lists them, without data.
#pragma once

#include <functional>

#include "kernels/gemm/gemm.h"
#include "kernels/ops.h"

namespace tessera {

// y[N, O] = x[N, C] weight[O, C]^T. cuBLASLt fuses one activation, the tanh form of GELU; ours fuses all.
// With FP8 operands cuBLASLt's fused GELU is not used: in the backward it takes six times as long as a
// pass of its own.
struct LinearForwardGemms {
  Gemm fused;                    // with bias, add, or a GELU and its input; odd sizes may have no algorithm
  Gemm plain;                    // with add alone; into the input of the activation if there is one
  bool fuses_activation;         // `fused` computes the activation
  std::optional<Gemm> own = {};  // with any activation and its input, for our own GEMM
};
LinearForwardGemms gemms_of(const LinearForward& a);

struct LinearBackwardGemms {
  std::optional<Gemm> dweight;      // dweight[O, C] += dy[N, O]^T x[N, C], and with it dbias if in bf16
  std::optional<Gemm> fused_dx;     // dx with the backward of a GELU; odd sizes may have no algorithm
  Gemm dx;                          // dx[N, C] = add[N, C] + dy[N, O] weight[O, C]
  std::optional<Gemm> own_dx = {};  // dx with the backward of any activation, for our own GEMM
};
LinearBackwardGemms gemms_of(const LinearBackward& a);

// In their order
using EachGemm = std::function<void(const Gemm&)>;
void each_gemm(const LoraForward& a, const EachGemm& run);
void each_gemm(const LoraBackward& a, const EachGemm& run);

// The GEMMs of any operation that are worth timing: those of attention have their own kernels, and a
// backward of one row takes as long with every algorithm. Without data, and as if rows were too many for
// the kernel for few.
void each_gemm(const AnyOp& op, const EachGemm& see);

}  // namespace tessera

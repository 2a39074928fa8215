// The GEMMs of operations on linear layers. CUDA runs them; a plan lists them without data.
#pragma once

#include <functional>

#include "kernels/gemm/gemm.h"
#include "kernels/ops.h"

namespace tessera {

// y[N, O] = x[N, C] weight[O, C]^T. cuBLASLt can fuse one activation, the tanh form of GELU; our GEMMs fuse
// all. With FP8 operands cuBLASLt's fused GELU is not used: in the backward it takes six times as long as a
// pass of its own.
struct LinearForwardGemms {
  Gemm fused;                    // with bias, add, or GELU and its input; odd sizes may have no algorithm
  Gemm plain;                    // with `add` only; writes the activation's input if there is an activation
  bool fuses_activation;         // whether `fused` computes the activation
  std::optional<Gemm> own = {};  // for our own GEMM: with any activation and its input
};
LinearForwardGemms gemms_of(const LinearForward& a);

struct LinearBackwardGemms {
  std::optional<Gemm> dweight;      // dweight[O, C] += dy[N, O]^T x[N, C]; a dbias in bf16 is computed with
                                    // it
  std::optional<Gemm> fused_dx;     // dx with the backward of a GELU; odd sizes may have no algorithm
  Gemm dx;                          // dx[N, C] = add[N, C] + dy[N, O] weight[O, C]
  std::optional<Gemm> own_dx = {};  // for our own GEMM: dx with the backward of any activation
};
LinearBackwardGemms gemms_of(const LinearBackward& a);

// Call run() with the GEMMs in their order.
using EachGemm = std::function<void(const Gemm&)>;
void each_gemm(const LoraForward& a, const EachGemm& run);
void each_gemm(const LoraBackward& a, const EachGemm& run);

// Calls see() with the GEMMs of any operation that are worth timing: not those of attention, which has its
// own kernels, and not those of a backward of one row, which takes as long with every algorithm. They have no
// data. All are listed as if there were too many rows for the kernel for few rows.
void each_gemm(const AnyOp& op, const EachGemm& see);

}  // namespace tessera

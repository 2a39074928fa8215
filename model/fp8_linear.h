// A linear layer whose GEMMs are in FP8 (Micikevicius et al., arXiv:2209.05433): with q(t) for a tensor
// rounded to one byte an element, and one scale s for all of it,
//   y  = s_x s_W q(x) q(W)^T + bias       x and W in e4m3
//   dx = s_dy s_W q(dy) q(W)              dy in e5m2
//   dW = dy^T x                           of the unrounded tensors; or with train.fp8.dw
//   dW = s_dy s_x q(dy)^T q(x)            of transposed copies, which are made just before
//
// The operation that writes x or dy can also write q(x) or q(dy), to x_output() or dy_output(); the GEMM then
// reads that. Otherwise quantise_operands() reads the tensor once more. Layers share the memory of these
// operands, so nothing else may be rounded between the two operations (stages.h). What a GEMM writes for the
// next GEMM has memory of its own, since the first one still reads its own operand.
#pragma once

#include <vector>

#include "kernels/stream.h"

namespace tessera {

// The FP8 tensors of a layer. They are views of those of Fp8 (fp8.h).
struct Fp8Linear {
  Fp8Matrix weight;          // [O, C] e4m3, of experts [E, O, C]; none: the layer is not in FP8
  Fp8Matrix transposed;      // [C, O], of experts [E, C, O], the same
  Tensor x_scale, dy_scale;  // [1] fp32
  Tensor x_amax, dy_amax;    // [1] fp32, of this step so far
  Tensor x_place, dy_place;  // memory for x and dy in FP8, which layers share
  Tensor x_transposed_place, dy_transposed_place;  // likewise, for dW; none: dW is not in FP8
  int64_t number = 0;                              // the index among the layers in FP8
  bool current_scales = false;                     // x_scale and dy_scale are found for each x and dy
  bool reads_again = false;                        // x and dy are only rounded by passes of their own
  explicit operator bool() const { return static_cast<bool>(weight); }

  // None if the layer is not in FP8, or if the scale is only known after the tensor is
  Fp8Output x_output(const Tensor& x) const;
  Fp8Output dy_output(const Tensor& dy) const;
};

// The linear layers of each block, in the order of BlockKind::linears, and the logits. The Fp8Linear of a
// layer that is not in FP8 is empty.
struct Fp8Layers {
  std::vector<std::vector<Fp8Linear>> blocks;  // empty for a block without FP8
  Fp8Linear head;
};

// Gives `gemm` its operands in FP8. x or dy is rounded first, unless it already is. Nothing changes if the
// layer is not in FP8. `saturated`, if given, counts the values of x or dy that were cut off: CountSaturated.
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearForward& gemm,
                       const Tensor& saturated = {});
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearBackward& gemm,
                       const Tensor& saturated = {});
// The same for experts. If rows are gathered, the row of each token is rounded once.
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, ExpertsForward& gemm,
                       const Tensor& saturated = {});
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, ExpertsBackward& gemm,
                       const Tensor& saturated = {});

}  // namespace tessera

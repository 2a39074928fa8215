// A linear layer whose GEMMs are in FP8 (Micikevicius et al., arXiv:2209.05433): with q(t) for a tensor
// rounded to one byte an element, and one scale s for all of it,
//   y  = s_x s_W q(x) q(W)^T + bias       x and W in e4m3
//   dx = s_dy s_W q(dy) q(W)              dy in e5m2
//   dW = dy^T x                           of the tensors themselves, or with train.fp8.dw
//   dW = s_dy s_x q(dy)^T q(x)            of transposed copies, made just before it
//
// The operation that writes x or dy can write q(x) or q(dy) with it, to x_output() or dy_output(), and the
// GEMM is then given that as its operand. Otherwise quantise_operands() reads the tensor once more. Layers
// share the place of these operands, so that nothing else may be rounded between the two (stages.h); but
// what a GEMM writes for the next one has a place of its own, since it reads its operand at the same time.
#pragma once

#include <vector>

#include "kernels/stream.h"

namespace tessera {

// What the layer has for them. Its tensors are views of those of Fp8 (fp8.h).
struct Fp8Linear {
  Fp8Matrix weight;                                // [O, C] e4m3; none: the layer is not in FP8
  Fp8Matrix transposed;                            // [C, O], the same
  Tensor x_scale, dy_scale;                        // [1] fp32
  Tensor x_amax, dy_amax;                          // [1] fp32, of this step so far
  Tensor x_place, dy_place;                        // room for them in FP8: layers share it
  Tensor x_transposed_place, dy_transposed_place;  // likewise, for dW; none: dW is not in FP8
  int64_t number = 0;                              // among the layers in FP8
  bool current_scales = false;                     // x_scale and dy_scale are found for each x and dy
  bool reads_again = false;                        // x and dy are rounded by passes of their own alone
  explicit operator bool() const { return static_cast<bool>(weight); }

  // None where the layer is not in FP8, or a scale is not known before its tensor is
  Fp8Output x_output(const Tensor& x) const;
  Fp8Output dy_output(const Tensor& dy) const;
};

// The linear layers of each block, in the order of BlockKind::linears, and the logits. A layer that is not in
// FP8 has nothing.
struct Fp8Layers {
  std::vector<std::vector<Fp8Linear>> blocks;  // of a block without FP8: empty
  Fp8Linear head;
};

// Names the operands of `gemm`, after rounding x or dy if it has none in FP8 yet. Nothing changes where
// the layer is not in FP8. `saturated`, if given, counts the values of x or dy that were cut off:
// CountSaturated.
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearForward& gemm,
                       const Tensor& saturated = {});
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearBackward& gemm,
                       const Tensor& saturated = {});

}  // namespace tessera

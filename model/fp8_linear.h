// A linear layer whose products are in FP8 (Micikevicius et al., arXiv:2209.05433): with q(t) for a tensor
// rounded to one byte an element, and one scale s for all of it,
//   y  = s_x s_W q(x) q(W)^T + bias       x and W in e4m3
//   dx = s_dy s_W q(dy) q(W)              dy in e5m2
//   dW = dy^T x                           of the tensors themselves
//
// The operation that writes x or dy can write q(x) or q(dy) with it, to x_output() or dy_output(): the
// product is then given that as its factor. Otherwise quantise_factors() reads the tensor once more. Layers
// share the place of these factors, so that nothing else may be rounded between the two; but what lies
// between the MLP's layers has its own, since one product reads codes and writes those of the next.
#pragma once

#include "kernels/stream.h"

namespace tessera {

// What the layer has for them. Its tensors are views of those of Fp8 (fp8.h).
struct Fp8Linear {
  Fp8Matrix weight;             // [O, C] e4m3; none: the layer is not in FP8
  Fp8Matrix transposed;         // [C, O], the same
  Tensor x_scale, dy_scale;     // [1] fp32
  Tensor x_amax, dy_amax;       // [1] fp32, of this step so far
  Tensor x_place, dy_place;     // room for them in FP8: layers share it
  bool current_scales = false;  // x_scale and dy_scale are found for each x and dy
  bool reads_again = false;     // x and dy are rounded by passes of their own alone
  explicit operator bool() const { return static_cast<bool>(weight); }

  // None where the layer is not in FP8, or a scale is not known before its tensor is
  Fp8Output x_output(const Tensor& x) const;
  Fp8Output dy_output(const Tensor& dy) const;
};

// Names the factors in `product`, after rounding x or dy if it has none yet. Nothing changes where the layer
// is not in FP8.
void quantise_factors(const Stream& stream, const Fp8Linear& fp8, LinearForward& product);
void quantise_factors(const Stream& stream, const Fp8Linear& fp8, LinearBackward& product);

}  // namespace tessera

// Linear layers, their adapters, and what their operands are stored as: FP8 and 4 bits. The rules for all
// operations are in ops.h.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/base/activation.h"
#include "kernels/base/four_bits.h"
#include "kernels/base/tensor.h"
#include "kernels/fp8_matrix.h"

namespace tessera {

// y = x / scale in FP8 (kernels/base/fp8.h), rounded to nearest even. What is beyond the format's largest
// number becomes that number, NaN stays NaN. Several matrices [E, N, C] have one scale.
struct Quantise {
  static constexpr const char* kName = "quantise";
  Tensor x;                // [N, C] or [E, N, C]
  DType format;            // e4m3 or e5m2
  Fp8Matrix y;             // like x; without data if only the transposed copy or the amax is wanted
  Tensor transposed = {};  // [C, N] or [E, C, N]: the same values, each matrix transposed
  Tensor amax = {};        // [1] fp32, becomes max(amax, |x|); NaN counts as the largest
  bool current = false;    // first writes the scale: that of x itself, fp8_scale() without headroom

  void check_on(Device device) const;
};

// Counts the elements of x that Quantise cuts off, for an observer: count += the number of elements that,
// with this scale, are beyond the format's largest number. NaN is not counted.
struct CountSaturated {
  static constexpr const char* kName = "count saturated";
  Tensor x;      // [N, C]
  DType format;  // e4m3 or e5m2
  Tensor scale;  // [1] fp32
  Tensor count;  // [2] int32, the words of a uint64

  void check_on(Device device) const;
};

// y = x scale. A value of e4m3 has four significant bits, so a bf16 y is exact.
struct Dequantise {
  static constexpr const char* kName = "dequantise";
  Fp8Matrix x;  // [N, C] in e4m3
  Tensor y;     // [N, C]

  void check_on(Device device) const;
};

// Several layers that are stored as one matrix, such as q, k and v: the outputs of each of up to three; 0: no
// such layer
using LayerParts = std::array<int64_t, 3>;
inline int64_t count_of(const LayerParts& parts) {
  return std::ranges::count_if(parts, [](int64_t rows) { return rows > 0; });
}

// A matrix [N, C] with 4 bits a number (kernels/base/four_bits.h). C is a multiple of block_of(format).
struct FourBitMatrix {
  FourBits format;
  Tensor data;    // [N C / 4] uint16: bytes with two numbers each
  Tensor scales;  // [words_of_scales()] words of 32 bits; the dtype is fp32 in name only
  // If NF4 has scales in 8 bits (kernels/base/small_scales.h): the rows of each matrix of the files that this
  // one consists of. None: the scales are in fp32
  LayerParts small_scales = {};

  bool has_small_scales() const { return small_scales[0] > 0; }
};
// The number of NF4's scales of each of these matrices, which have `rows` rows of `columns` columns
LayerParts scales_of_each(const LayerParts& rows, int64_t columns);
int64_t words_of_scales(FourBits format, const Shape& matrix, const LayerParts& small_scales);

// y = x, rounded to 4 bits. If the scales are to be in 8 bits, RoundScales must follow.
struct RoundToFourBits {
  static constexpr const char* kName = "round to 4 bits";
  Tensor x;  // [N, C]
  FourBitMatrix y;

  void check_on(Device device) const;
};

// Rounds NF4's scales x to 8 bits: see SmallScalePlaces
struct RoundScales {
  static constexpr const char* kName = "round scales";
  Tensor x;           // [S] fp32
  LayerParts scales;  // the number of scales of each matrix; S in all
  Tensor y;           // [SmallScalePlaces::words()] words of 32 bits; the dtype is fp32 in name only

  void check_on(Device device) const;
};

// y = x widened to the dtype of y; in bf16 the product of value and scale is rounded.
struct WidenFourBits {
  static constexpr const char* kName = "widen 4 bits";
  FourBitMatrix x;
  Tensor y;  // [N, C]

  void check_on(Device device) const;
};

// y = x^T, for values in FP8: of one matrix, or of each of several
struct TransposeFp8 {
  static constexpr const char* kName = "transpose FP8";
  Tensor x, y;  // [N, C] [C, N] in e4m3, or [E, N, C] [E, C, N]

  void check_on(Device device) const;
};

// scale = fp8_scale(the largest amax of all ranks), with fp8_headroom(). If that amax is 0 or not finite, the
// scale does not change. With `current` there is no headroom, as in Quantise, and the scale becomes 1 if amax
// is 0 or not finite.
struct UpdateScales {
  static constexpr const char* kName = "update scales";
  Tensor amax;   // [R, F, S] fp32 of R ranks: of S matrices in e4m3 and, if F is 2, of S in e5m2
  Tensor scale;  // [F, S, kFp8ScaleStride] fp32: the first of each kFp8ScaleStride is written
  bool current = false;

  void check_on(Device device) const;
};

// y = x weight^T + bias + add. If there is a pre_activation, it gets that sum, and y =
// activation(pre_activation).
struct LinearForward {
  static constexpr const char* kName = "linear forward";
  Tensor x, weight, y;         // [N, C] [O, C] [N, O]
  Tensor bias = {};            // [O]
  Tensor add = {};             // [N, O], a residual; may be y itself, or pre_activation if there is one
  Tensor pre_activation = {};  // [N, O], saved for the backward
  Activation activation = Activation::kGelu;  // used if there is a pre_activation
  // x and weight in e4m3: both or none. If they are given, the GEMM multiplies these
  Fp8Matrix fp8_x = {}, fp8_weight = {};
  // The activation in FP8, after a GEMM in FP8. It must not share memory with fp8_x, which may still be read.
  Fp8Output fp8_y = {};

  void check_on(Device device) const;
};
struct LinearBackward {
  static constexpr const char* kName = "linear backward";
  enum class Part : uint8_t { kWeight, kInput };  // what is computed; dbias belongs to the weight

  Tensor dy, x, weight;        // [N, O] [N, C] [O, C]
  Tensor dx;                   // [N, C]; may be x itself: dweight and dbias are computed first
  Tensor dweight = {};         // [O, C], added to; none: the weight is frozen, and so is a bias
  Tensor dbias = {};           // [O], or shorter: of the first outputs only; added to
  Tensor dx_sum = {};          // [C], added to: the sum of dx's rows, the gradient of a bias added to x
  Tensor pre_activation = {};  // [N, C], if x = activation(pre_activation): dx is then the gradient of it
  Activation activation = Activation::kGelu;
  // [N, C]: another part of the gradient of x; may be dx itself. If there is a dweight as well, dx must not
  // be x
  Tensor add = {};
  // dy in e5m2, and weight^T [C, O] in e4m3: both or none. If they are given, dx is computed from these
  Fp8Matrix fp8_dy = {}, fp8_weight = {};
  // The gradient of an activation's input in FP8, after a GEMM in FP8; must not share memory with fp8_dy
  Fp8Output fp8_dx = {};
  // dy^T [O, N] in e5m2 and x^T [C, N] in e4m3: both or none. If they are given, dweight is computed from
  // these
  Fp8Matrix fp8_dy_transposed = {}, fp8_x_transposed = {};
  bool accumulate = true;

  void check_on(Device device) const;
};

// The adapter of a frozen linear layer, LoRA (Hu et al., arXiv:2106.09685): u = scale x A^T, y = add + u B^T.
// If P layers are stored as one matrix, each has its own A and B: the outputs of a layer depend only on its
// own r columns of u.
struct LoraForward {
  static constexpr const char* kName = "LoRA forward";
  Tensor x, a, b;    // [N, C] [P r, C] [O, r]
  LayerParts parts;  // the outputs of each layer; O in all
  float scale;
  Tensor u, y;      // [N, P r], kept for the backward; [N, O]
  Tensor add = {};  // [N, O]; may be y itself

  void check_on(Device device) const;
};
struct LoraBackward {
  static constexpr const char* kName = "LoRA backward";
  Tensor dy, x, a, b;  // [N, O] [N, C] [P r, C] [O, r]
  LayerParts parts;
  float scale;
  Tensor u;         // [N, P r], overwritten by its gradient
  Tensor dx;        // [N, C], the adapter's part of the gradient; may be x itself: da is computed first
  Tensor da, db;    // [P r, C] [O, r], added to
  Tensor add = {};  // [N, C]: dx = add + the adapter's part; may be dx itself, which must then not be x
  bool accumulate = true;

  void check_on(Device device) const;
};

}  // namespace tessera

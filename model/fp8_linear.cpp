#include "model/fp8_linear.h"

#include "kernels/expert_ops.h"

namespace tessera {
namespace {

Tensor view_in(const Tensor& place, DType format, const Shape& shape) {
  Tensor view = place.rows(0, shape.numel()).view(shape);
  view.dtype = fp8_storage(format, place.device);
  return view;
}

// The place of x or dy in FP8
Fp8Output place_of(const Tensor& in, const Tensor& x, DType format, const Tensor& scale, const Tensor& amax) {
  return {.y = {.data = view_in(in, format, x.shape), .scale = scale}, .amax = amax};
}
Fp8Output place_of_x(const Fp8Linear& fp8, const Tensor& x) {
  return place_of(fp8.x_place, x, DType::kE4M3, fp8.x_scale, fp8.x_amax);
}
Fp8Output place_of_dy(const Fp8Linear& fp8, const Tensor& dy) {
  return place_of(fp8.dy_place, dy, DType::kE5M2, fp8.dy_scale, fp8.dy_amax);
}

Fp8Matrix quantised(const Stream& stream, const Fp8Linear& fp8, const Tensor& x, DType format,
                    const Fp8Output& to, const Tensor& transposed = {}) {
  stream.run(Quantise{.x = x,
                      .format = format,
                      .y = to.y,
                      .transposed = transposed,
                      .amax = to.amax,
                      .current = fp8.current_scales});
  return to.y;
}

void transpose(const Stream& stream, const Tensor& x, DType format, const Tensor& scale, const Tensor& to,
               bool current = false) {
  stream.run(Quantise{
      .x = x, .format = format, .y = {.data = {}, .scale = scale}, .transposed = to, .current = current});
}

// Rounds x of a forward, unless the operation that wrote it has
template <class Gemm>
void quantise_x(const Stream& stream, const Fp8Linear& fp8, Gemm& gemm, const Tensor& saturated) {
  if (!fp8) return;
  if (!gemm.fp8_x) gemm.fp8_x = quantised(stream, fp8, gemm.x, DType::kE4M3, place_of_x(fp8, gemm.x));
  gemm.fp8_weight = fp8.weight;
  if (saturated)
    stream.run(CountSaturated{.x = gemm.x, .format = DType::kE4M3, .scale = fp8.x_scale, .count = saturated});
}
// Rounds dy of a backward, unless the operation that wrote it has. `transposed`, if any, gets the transpose.
template <class Gemm>
void quantise_dy(const Stream& stream, const Fp8Linear& fp8, Gemm& gemm, const Tensor& saturated,
                 const Tensor& transposed = {}) {
  if (!gemm.fp8_dy) {
    gemm.fp8_dy = quantised(stream, fp8, gemm.dy, DType::kE5M2, place_of_dy(fp8, gemm.dy), transposed);
  } else if (transposed) {
    transpose(stream, gemm.dy, DType::kE5M2, fp8.dy_scale, transposed);
  }
  gemm.fp8_weight = fp8.transposed;
  if (saturated)
    stream.run(
        CountSaturated{.x = gemm.dy, .format = DType::kE5M2, .scale = fp8.dy_scale, .count = saturated});
}

bool writers_round(const Fp8Linear& fp8) { return fp8 && !fp8.current_scales && !fp8.reads_again; }

}  // namespace

Fp8Output Fp8Linear::x_output(const Tensor& x) const {
  return writers_round(*this) ? place_of_x(*this, x) : Fp8Output{};
}
Fp8Output Fp8Linear::dy_output(const Tensor& dy) const {
  return writers_round(*this) ? place_of_dy(*this, dy) : Fp8Output{};
}

void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearForward& gemm,
                       const Tensor& saturated) {
  quantise_x(stream, fp8, gemm, saturated);
}
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, ExpertsForward& gemm,
                       const Tensor& saturated) {
  quantise_x(stream, fp8, gemm, saturated);
}

void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearBackward& gemm,
                       const Tensor& saturated) {
  if (!fp8) return;
  Tensor dy_transposed, x_transposed;
  if (gemm.dweight && fp8.x_transposed_place) {
    x_transposed = view_in(fp8.x_transposed_place, DType::kE4M3, {gemm.x.shape[1], gemm.x.shape[0]});
    dy_transposed = view_in(fp8.dy_transposed_place, DType::kE5M2, {gemm.dy.shape[1], gemm.dy.shape[0]});
  }
  quantise_dy(stream, fp8, gemm, saturated, dy_transposed);
  if (!x_transposed) return;
  // By the scale that x had in the forward, which has noted its largest element. A current one is found
  // again: with an MLP in chunks, the stored one is that of another chunk.
  transpose(stream, gemm.x, DType::kE4M3, fp8.x_scale, x_transposed, fp8.current_scales);
  gemm.fp8_x_transposed = {x_transposed, fp8.x_scale};
  gemm.fp8_dy_transposed = {dy_transposed, fp8.dy_scale};
}
void quantise_operands(const Stream& stream, const Fp8Linear& fp8, ExpertsBackward& gemm,
                       const Tensor& saturated) {
  if (fp8) quantise_dy(stream, fp8, gemm, saturated);
}

}  // namespace tessera

#include "model/fp8_linear.h"

namespace tessera {
namespace {

// The place of x or dy in FP8
Fp8Output place_of(const Tensor& in, const Tensor& x, DType format, const Tensor& scale, const Tensor& amax) {
  Fp8Output place{.y = {.data = in.rows(0, x.numel()).view(x.shape), .scale = scale}, .amax = amax};
  place.y.data.dtype = fp8_storage(format, x.device);
  return place;
}
Fp8Output place_of_x(const Fp8Linear& fp8, const Tensor& x) {
  return place_of(fp8.x_place, x, DType::kE4M3, fp8.x_scale, fp8.x_amax);
}
Fp8Output place_of_dy(const Fp8Linear& fp8, const Tensor& dy) {
  return place_of(fp8.dy_place, dy, DType::kE5M2, fp8.dy_scale, fp8.dy_amax);
}

Fp8Matrix quantised(const Stream& stream, const Fp8Linear& fp8, const Tensor& x, DType format,
                    const Fp8Output& to) {
  stream.run(Quantise{.x = x, .format = format, .y = to.y, .amax = to.amax, .current = fp8.current_scales});
  return to.y;
}

bool writers_round(const Fp8Linear& fp8) { return fp8 && !fp8.current_scales && !fp8.reads_again; }

}  // namespace

Fp8Output Fp8Linear::x_output(const Tensor& x) const {
  return writers_round(*this) ? place_of_x(*this, x) : Fp8Output{};
}
Fp8Output Fp8Linear::dy_output(const Tensor& dy) const {
  return writers_round(*this) ? place_of_dy(*this, dy) : Fp8Output{};
}

void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearForward& gemm) {
  if (!fp8) return;
  if (!gemm.fp8_x) gemm.fp8_x = quantised(stream, fp8, gemm.x, DType::kE4M3, place_of_x(fp8, gemm.x));
  gemm.fp8_weight = fp8.weight;
}

void quantise_operands(const Stream& stream, const Fp8Linear& fp8, LinearBackward& gemm) {
  if (!fp8) return;
  if (!gemm.fp8_dy) gemm.fp8_dy = quantised(stream, fp8, gemm.dy, DType::kE5M2, place_of_dy(fp8, gemm.dy));
  gemm.fp8_weight = fp8.transposed;
}

}  // namespace tessera

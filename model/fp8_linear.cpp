#include "model/fp8_linear.h"

namespace tessera {
namespace {

Fp8Matrix quantised(const Stream& stream, const Fp8Linear& fp8, const Tensor& x, DType format,
                    const Tensor& scale, const Tensor& amax) {
  Fp8Matrix y{.data = fp8.operand.rows(0, x.numel()).view(x.shape), .scale = scale};
  y.data.dtype = fp8_storage(format, x.device);
  stream.run(Quantise{.x = x, .format = format, .y = y, .amax = amax, .current = fp8.current_scales});
  return y;
}

}  // namespace

void quantise_factors(const Stream& stream, const Fp8Linear& fp8, LinearForward& product) {
  if (!fp8) return;
  product.fp8_x = quantised(stream, fp8, product.x, DType::kE4M3, fp8.x_scale, fp8.x_amax);
  product.fp8_weight = fp8.weight;
}

void quantise_factors(const Stream& stream, const Fp8Linear& fp8, LinearBackward& product) {
  if (!fp8) return;
  product.fp8_dy = quantised(stream, fp8, product.dy, DType::kE5M2, fp8.dy_scale, fp8.dy_amax);
  product.fp8_weight = fp8.transposed;
}

}  // namespace tessera

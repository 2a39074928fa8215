#include "kernels/base/check.h"
#include "kernels/base/fp8.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/base/small_scales.h"
#include "kernels/op_checks.h"
#include "kernels/ops.h"

namespace tessera {

DType fp8_storage(DType format, Device device) { return device == Device::kCuda ? format : DType::kF32; }

Shape transposed_shape(const Shape& matrix) {
  return matrix.rank() == 3 ? Shape{matrix[0], matrix[2], matrix[1]} : Shape{matrix[1], matrix[0]};
}

void check_fp8(const char* op, Device device, const Fp8Field& a, const Fp8Field& b) {
  if (!a.data && !b.data) return;
  for (const Fp8Field* f : {&a, &b})
    check_fields(op, device,
                 {{f->name, f->data, fp8_storage(f->format, device), f->shape},
                  {"the scale of an operand in FP8", f->scale, DType::kF32, {1}}});
}

void check_fp8_output(const char* op, Device device, const char* name, const Fp8Output& output, DType format,
                      const Tensor& result) {
  if (!output) return;
  check_fields(op, device,
               {{name, output.y.data, fp8_storage(format, device), result.shape},
                {"the scale of a result in FP8", output.y.scale, DType::kF32, {1}},
                {"the amax of a result in FP8", output.amax, DType::kF32, {1}}});
  check(device == Device::kCpu || result.dtype == DType::kBF16,
        "{}: {} needs a result in bf16 beside it, found {}", op, name, result.to_string());
}

void Quantise::check_on(Device device) const {
  check_anchor(kName, "x", x, x.shape.rank() == 3 ? 3 : 2, device);
  check(is_fp8(format), "{}: format must be e4m3 or e5m2, found {}", kName, name_of(format));
  const DType stored = fp8_storage(format, device);
  check_fields(kName, device,
               {{"y", y.data, stored, x.shape, transposed || amax},
                {"the scale of y", y.scale, DType::kF32, {1}},
                {"transposed", transposed, stored, transposed_shape(x.shape), true},
                {"amax", amax, DType::kF32, {1}, true}});
}

void CountSaturated::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check(is_fp8(format), "{}: format must be e4m3 or e5m2, found {}", kName, name_of(format));
  check_fields(kName, device, {{"scale", scale, DType::kF32, {1}}, {"count", count, DType::kI32, {2}}});
}

void Dequantise::check_on(Device device) const {
  check_anchor(kName, "y", y, 2, device);
  check_fields(kName, device,
               {{"x", x.data, fp8_storage(DType::kE4M3, device), y.shape},
                {"the scale of x", x.scale, DType::kF32, {1}}});
}

namespace {

void check_four_bits(const char* op, Device device, const char* plain_name, const Tensor& plain,
                     const FourBitMatrix& m) {
  check_anchor(op, plain_name, plain, 2, device);
  const int64_t rows = plain.shape[0], columns = plain.shape[1];
  check(columns % block_of(m.format) == 0, "{}: rows must have a multiple of {} numbers in {}, found {}", op,
        block_of(m.format), name_of(m.format), columns);
  check_fields(op, device,
               {{"the values in 4 bits", m.data, DType::kU16, {rows * columns / 4}},
                {"the scales of values in 4 bits",
                 m.scales,
                 DType::kF32,
                 {words_of_scales(m.format, plain.shape, m.small_scales)}}});
}

}  // namespace

LayerParts scales_of_each(const LayerParts& rows, int64_t columns) {
  LayerParts scales = rows;
  for (int64_t& count : scales) count *= columns / kNf4Block;
  return scales;
}

int64_t words_of_scales(FourBits format, const Shape& matrix, const LayerParts& small_scales) {
  const int64_t columns = matrix[-1], rows = matrix.numel() / columns;
  if (small_scales[0] == 0) return rows * scale_words(format, columns);
  const int64_t of_all = small_scales[0] + small_scales[1] + small_scales[2];
  check(format == FourBits::kNf4 && of_all == rows,
        "scales in 8 bits: expected a matrix in NF4 of {} rows, which the parts have, found one in {} of {}",
        of_all, name_of(format), rows);
  return SmallScalePlaces(scales_of_each(small_scales, columns)).words();
}

void RoundToFourBits::check_on(Device device) const {
  check_four_bits(kName, device, "x", x, y);
  check(!y.has_small_scales(), "{}: scales in 8 bits are made by {}, from those that this one writes in fp32",
        kName, RoundScales::kName);
}

void RoundScales::check_on(Device device) const {
  check_anchor(kName, "x", x, 1, device);
  check(scales[0] > 0 && scales[0] + scales[1] + scales[2] == x.shape[0],
        "{}: the matrices have {}, {} and {} scales, and x has {}", kName, scales[0], scales[1], scales[2],
        x.shape[0]);
  check_fields(kName, device,
               {{"x", x, DType::kF32, x.shape}, {"y", y, DType::kF32, {SmallScalePlaces(scales).words()}}});
}

void WidenFourBits::check_on(Device device) const { check_four_bits(kName, device, "y", y, x); }

void TransposeFp8::check_on(Device device) const {
  const DType stored = fp8_storage(DType::kE4M3, device);
  const Shape shape = x.shape.rank() >= 2 ? x.shape : Shape{1, 1};
  check_fields(kName, device, {{"x", x, stored, shape}, {"y", y, stored, transposed_shape(shape)}});
  check(!x.data || x.data != y.data, "{}: x is read while y is written", kName);
}

void UpdateScales::check_on(Device device) const {
  const int64_t R = amax ? amax.shape[0] : 1, F = scale && scale.shape[0] == 1 ? 1 : 2,
                S = scale ? scale.shape[1] : 1;
  check_fields(
      kName, device,
      {{"amax", amax, DType::kF32, {R, F, S}}, {"scale", scale, DType::kF32, {F, S, kFp8ScaleStride}}});
}

}  // namespace tessera

#include "model/store/stored_format.h"

#include "kernels/base/check.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/base/small_scales.h"

namespace tessera {
namespace {

Tensor matrix_of(const Tensor& matrices) {
  const int64_t columns = matrices.shape[-1];
  return matrices.view({matrices.numel() / columns, columns});
}

class Fp8Format final : public StoredFormat {
 public:
  const char* name() const override { return "FP8"; }
  DType unit(Device device) const override { return fp8_storage(DType::kE4M3, device); }
  int64_t units(int64_t elements) const override { return elements; }
  int64_t scales_of(const StoredShape& /*matrix*/) const override { return kFp8ScaleStride; }
  bool is_multiplied() const override { return true; }
  void round(const Stream& stream, const Tensor& plain, const StoredValues& to) const override {
    stream.run(
        Quantise{.x = plain, .format = DType::kE4M3, .y = {to.data, to.scales.rows(0, 1)}, .current = true});
  }
  void widen(const Stream& stream, const StoredValues& from, const Tensor& plain) const override {
    stream.run(Dequantise{.x = {matrix_of(from.data), from.scales.rows(0, 1)}, .y = matrix_of(plain)});
  }
};

class FourBitFormat : public StoredFormat {
 public:
  explicit FourBitFormat(FourBits format) : format_(format) {}
  const char* name() const override { return name_of(format_); }
  DType unit(Device /*device*/) const override { return DType::kU16; }
  int64_t units(int64_t elements) const override { return elements / 4; }
  int64_t scales_of(const StoredShape& matrix) const override {
    return words_of_scales(format_, matrix.shape, {});
  }
  bool is_multiplied() const override { return false; }
  // A value of NF4 in fp32 is rounded to itself, one that was rounded to bf16 need not be.
  DType rounds_from(DType /*plain*/) const override { return DType::kF32; }
  void check_matrix(const std::string& matrix_name, const Shape& matrix) const override {
    check(matrix[-1] % block_of(format_) == 0,
          "{} has {} inputs, and {} stores multiples of {}: set train.lora.base=auto, or of a "
          "teacher train.teacher_base=auto",
          matrix_name, matrix[-1], name(), block_of(format_));
  }
  void round(const Stream& stream, const Tensor& plain, const StoredValues& to) const override {
    stream.run(RoundToFourBits{.x = matrix_of(plain), .y = {format_, to.data, to.scales}});
  }
  void widen(const Stream& stream, const StoredValues& from, const Tensor& plain) const override {
    stream.run(WidenFourBits{.x = {format_, from.data, from.scales}, .y = matrix_of(plain)});
  }

 private:
  FourBits format_;
};

// Values are rounded by scales in fp32, as in NF4. Then these scales are rounded.
class Nf4DoubleFormat final : public FourBitFormat {
 public:
  Nf4DoubleFormat() : FourBitFormat(FourBits::kNf4) {}
  const char* name() const override { return "NF4 with scales in 8 bits"; }
  int64_t scales_of(const StoredShape& matrix) const override {
    return words_of_scales(FourBits::kNf4, matrix.shape, matrix.rows);
  }
  int64_t scales_before(const Shape& matrix) const override { return matrix.numel() / kNf4Block; }
  void finish(const Stream& stream, const Tensor& scales, const StoredValues& to) const override {
    const int64_t rows = to.rows[0] + to.rows[1] + to.rows[2];
    stream.run(RoundScales{
        .x = scales, .scales = scales_of_each(to.rows, scales.numel() / rows * kNf4Block), .y = to.scales});
  }
  void widen(const Stream& stream, const StoredValues& from, const Tensor& plain) const override {
    stream.run(
        WidenFourBits{.x = {FourBits::kNf4, from.data, from.scales, from.rows}, .y = matrix_of(plain)});
  }
};

}  // namespace

const StoredFormat& four_bit_format(FourBits format) {
  static const FourBitFormat nf4(FourBits::kNf4), mxfp4(FourBits::kMxfp4);
  return format == FourBits::kNf4 ? nf4 : mxfp4;
}

const StoredFormat& nf4_double_format() {
  static const Nf4DoubleFormat format;
  return format;
}

const StoredFormat& fp8_format() {
  static const Fp8Format format;
  return format;
}

}  // namespace tessera

#include "model/store/stored_format.h"

#include "kernels/base/check.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/base/nf4.h"

namespace tessera {
namespace {

class Fp8Format final : public StoredFormat {
 public:
  const char* name() const override { return "FP8"; }
  DType unit(Device device) const override { return fp8_storage(DType::kE4M3, device); }
  int64_t units(int64_t elements) const override { return elements; }
  int64_t scales_of(const Shape& /*matrix*/) const override { return kFp8ScaleStride; }
  bool is_multiplied() const override { return true; }
  void round(const Stream& stream, const Tensor& plain, const StoredValues& to) const override {
    stream.run(
        Quantise{.x = plain, .format = DType::kE4M3, .y = {to.data, to.scales.rows(0, 1)}, .current = true});
  }
  void widen(const Stream& stream, const StoredValues& from, const Tensor& plain) const override {
    stream.run(Dequantise{.x = {from.data, from.scales.rows(0, 1)}, .y = plain});
  }
};

class Nf4Format final : public StoredFormat {
 public:
  const char* name() const override { return "NF4"; }
  DType unit(Device /*device*/) const override { return DType::kU16; }
  int64_t units(int64_t elements) const override { return elements / 4; }
  int64_t scales_of(const Shape& matrix) const override { return matrix.numel() / kNf4Block; }
  bool is_multiplied() const override { return false; }
  // A value of NF4 in fp32 is rounded to itself, one that was rounded to bf16 need not be.
  DType rounds_from(DType /*plain*/) const override { return DType::kF32; }
  void check_matrix(const std::string& name, const Shape& matrix) const override {
    check(matrix[-1] % kNf4Block == 0,
          "{} has {} inputs, and train.lora.base=nf4 stores multiples of {}: set train.lora.base=auto", name,
          matrix[-1], kNf4Block);
  }
  void round(const Stream& stream, const Tensor& plain, const StoredValues& to) const override {
    stream.run(RoundNf4{.x = plain, .y = {to.data, to.scales}});
  }
  void widen(const Stream& stream, const StoredValues& from, const Tensor& plain) const override {
    const int64_t columns = plain.shape[-1];
    stream.run(WidenNf4{.x = {from.data, from.scales}, .y = plain.view({plain.numel() / columns, columns})});
  }
};

}  // namespace

const StoredFormat& nf4_format() {
  static const Nf4Format format;
  return format;
}

const StoredFormat& fp8_format() {
  static const Fp8Format format;
  return format;
}

}  // namespace tessera

#include "model/store/stored_format.h"

#include "kernels/base/fp8_scale.h"

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

}  // namespace

const StoredFormat& fp8_format() {
  static const Fp8Format format;
  return format;
}

}  // namespace tessera

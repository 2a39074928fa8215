// Adapters on top of frozen weights in NF4, on any device.
#pragma once

#include "kernels/base/bf16.h"
#include "kernels/base/nf4.h"
#include "tests/data_parallel.h"
#include "tests/lora_fp8.h"

namespace tessera::testing {

inline RunShape lora_nf4_shape(RunShape shape) {
  shape.freeze = Freeze::all_but_adapters();
  shape.base = LoraBase::kNf4;
  return shape;
}

// What is left of a weight in NF4, by the definition: the nearest of 16 values times the block's largest
inline void round_to_nf4(const Tensor& weight) {
  const std::span<float> all = floats(weight);
  for (size_t first = 0; first < all.size(); first += kNf4Block) {
    const std::span<float> block = all.subspan(first, kNf4Block);
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::abs(value));
    const float inverse = 1 / std::max(largest, 1e-38f);
    for (float& value : block) {
      uint32_t code = 0;  // those whose bound to the next one lies below
      while (code < 15 && value * inverse > (nf4_value(code) + nf4_value(code + 1)) / 2) ++code;
      value = nf4_value(code) * largest;
    }
  }
}

// Random values, written to both: to `plain` those that are left in NF4. Returns the latter.
inline std::vector<NamedTensor> write_rounded(TrainState& kept, TrainState& plain, HostTensors& make) {
  std::vector<NamedTensor> rounded;
  for (const ParamPlace& place : kept.store().layout().places) {
    const Tensor values = make.normal(place.info.shape, 0.05);
    kept.store().writer()(place, values);
    if (place.stored == StoredAs::kOnly) {
      round_to_nf4(values);
      if (plain.store().dtype() == DType::kBF16)  // to nearest even, as WidenNf4; the writer rounds ties up
        for (float& value : floats(values)) value = float_from_bf16(bf16_from_float(value));
    }
    plain.store().writer()(place, values);
    rounded.push_back({place.info.name, values});
  }
  return rounded;
}

// A run with the base in NF4 has the bits of one whose base has these values.
inline void expect_bits_of_rounded_weights(const DeviceTraits& device, const RunShape& shape) {
  HostTensors make;
  LoraSteps kept(device, lora_nf4_shape(shape)), plain(device, shape);
  write_rounded(kept.state, plain.state, make);
  int64_t stored = 0;
  for (const ParamPlace& place : kept.state.store().layout().places) {
    const bool is_matrix =
        place.info.block >= 0 && place.info.decay && place.info.adapter == AdapterMatrix::kNone;
    EXPECT_EQ(place.stored == StoredAs::kOnly, is_matrix) << place.info.name;
    stored += is_matrix;
  }
  EXPECT_GT(stored, 0);
  const auto compare = [&] {
    const std::vector<NamedTensor> found = weights_read(kept.state, make),
                                   want = weights_read(plain.state, make);
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_EQ(std::memcmp(found[i].tensor.data, want[i].tensor.data, want[i].tensor.bytes()), 0)
          << found[i].name;
  };
  compare();
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8}, targets{2, 3, 4, 5, 6, 7, 8, 9};
  const SequencesView text{.tokens = tokens, .targets = targets};
  EXPECT_EQ(kept.state.session().evaluate(text, 1), plain.state.session().evaluate(text, 1));
  for (int number = 1; number < 5; ++number) {
    const TrainState::StepResult one = kept.step(number), other = plain.step(number);
    EXPECT_EQ(one.loss, other.loss) << number;
    EXPECT_EQ(one.grad_norm, other.grad_norm) << number;
  }
  compare();  // the adapters, too
}

}  // namespace tessera::testing

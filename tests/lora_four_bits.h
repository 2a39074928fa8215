// Adapters on top of frozen weights in 4 bits, on any device.
#pragma once

#include "kernels/base/bf16.h"
#include "tests/data_parallel.h"
#include "tests/four_bits_reference.h"
#include "tests/lora_fp8.h"

namespace tessera::testing {

inline RunShape lora_four_bits_shape(RunShape shape, FourBits format) {
  shape.freeze = Freeze::all_but_adapters();
  shape.base = format == FourBits::kNf4 ? LoraBase::kNf4 : LoraBase::kMxfp4;
  return shape;
}

// Those of models_with_adapters() and models_with_adapted_experts() whose rows fill blocks
inline std::vector<ModelConfig> models_for_four_bits(int64_t channels, int64_t rank) {
  std::vector<ModelConfig> models = all_models_with_adapters(channels, rank);
  for (ModelConfig& model : models) {
    model.mlp_width = 3 * channels;
    if (model.experts) model.experts.width = channels;
    if (model.experts.shared_width > 0) model.experts.shared_width = channels;
  }
  return models;
}

// What is left of a weight by the definition: the nearest of 16 values times the block's largest, and of
// MXFP4 the nearest of 15 times a power of two, of two that are equally near the one with an even code
inline float to_nf4(float value, float largest) {
  const float inverse = 1 / std::max(largest, 1e-38f);
  uint32_t code = 0;  // those whose bound to the next one lies below
  while (code < 15 && value * inverse > (nf4_value(code) + nf4_value(code + 1)) / 2) ++code;
  return nf4_value(code) * largest;
}
inline float to_mxfp4(float value, float largest) {
  const double scale = scale_by_definition<Mxfp4>(largest);
  const double magnitude = std::abs(value) / scale;
  const double step = magnitude < 2 ? 0.5 : magnitude < 4 ? 1 : 2;  // between values of E2M1
  return static_cast<float>(std::copysign(std::nearbyint(magnitude / step) * step * scale, value));
}
inline void round_to_four_bits(FourBits format, const Tensor& weight) {
  const std::span<float> all = floats(weight);
  const auto count = static_cast<size_t>(block_of(format));
  for (size_t first = 0; first < all.size(); first += count) {
    const std::span<float> block = all.subspan(first, count);
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::abs(value));
    for (float& value : block)
      value = format == FourBits::kNf4 ? to_nf4(value, largest) : to_mxfp4(value, largest);
  }
}

// Random values, written to both: to `plain` those that are left in 4 bits. Returns the latter.
inline std::vector<NamedTensor> write_rounded(TrainState& kept, TrainState& plain, FourBits format,
                                              HostTensors& make) {
  std::vector<NamedTensor> rounded;
  for (const ParamPlace& place : kept.store().layout().places) {
    const Tensor values = make.normal(place.info.shape, 0.05);
    kept.store().writer()(place, values);
    if (place.stored == StoredAs::kOnly) {
      round_to_four_bits(format, values);
      if (plain.store().dtype() ==
          DType::kBF16)  // to nearest even, as WidenFourBits; the writer rounds ties up
        for (float& value : floats(values)) value = float_from_bf16(bf16_from_float(value));
    }
    plain.store().writer()(place, values);
    rounded.push_back({place.info.name, values});
  }
  return rounded;
}

// A run with the base in 4 bits has the bits of one whose base has these values.
inline void expect_bits_of_rounded_weights(const DeviceTraits& device, const RunShape& shape,
                                           FourBits format) {
  HostTensors make;
  LoraSteps kept(device, lora_four_bits_shape(shape, format)), plain(device, shape);
  write_rounded(kept.state, plain.state, format, make);
  int64_t stored = 0;
  for (const ParamPlace& place : kept.state.store().layout().places) {
    const bool is_matrix = place.info.block >= 0 && place.info.decay &&
                           place.info.adapter == AdapterMatrix::kNone &&
                           place.info.part != ParamPart::kRouter;
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

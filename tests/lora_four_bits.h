// Adapters on top of frozen weights in 4 bits, on any device.
#pragma once

#include "kernels/base/bf16.h"
#include "tests/data_parallel.h"
#include "tests/four_bits_reference.h"
#include "tests/lora_fp8.h"
#include "tests/small_scales_reference.h"

namespace tessera::testing {

inline constexpr BaseForm kFourBitBases[] = {BaseForm::kNf4, BaseForm::kNf4Double, BaseForm::kMxfp4};
inline FourBits format_of(BaseForm base) {
  return base == BaseForm::kMxfp4 ? FourBits::kMxfp4 : FourBits::kNf4;
}

inline RunShape lora_four_bits_shape(RunShape shape, BaseForm base) {
  shape.freeze = Freeze::all_but_adapters();
  shape.base = base;
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

// A weight after rounding, by the definition: in NF4 the nearest of 16 values times the scale, in MXFP4 the
// nearest of 15 values times a power of two, and of two that are equally near the one with an even code
inline float to_nf4(float value, float largest, float scale) {
  const float inverse = 1 / std::max(largest, 1e-38f);
  uint32_t code = 0;  // those whose bound to the next one lies below
  while (code < 15 && value * inverse > (nf4_value(code) + nf4_value(code + 1)) / 2) ++code;
  return nf4_value(code) * scale;
}
inline float to_mxfp4(float value, float largest) {
  const double scale = scale_by_definition<Mxfp4>(largest);
  const double magnitude = std::abs(value) / scale;
  const double step = magnitude < 2 ? 0.5 : magnitude < 4 ? 1 : 2;  // between values of E2M1
  return static_cast<float>(std::copysign(std::nearbyint(magnitude / step) * step * scale, value));
}
// Rounds the scales of a matrix to 8 bits: the distance from the mean becomes the nearest of 256 values times
// the largest distance of its group.
inline void round_scales(std::span<float> scales) {
  double sum = 0;
  for (const float scale : scales) sum += static_cast<double>(scale);
  const auto mean = static_cast<float>(sum / static_cast<double>(scales.size()));
  for (size_t first = 0; first < scales.size(); first += kScaleGroup) {
    const std::span<float> group =
        scales.subspan(first, std::min<size_t>(kScaleGroup, scales.size() - first));
    float largest = 0;
    for (const float scale : group) largest = std::max(largest, std::abs(scale - mean));
    for (float& scale : group) {
      float nearest = 0;
      for (int code = 0; code < 256 && largest > 0; ++code)
        if (std::abs((scale - mean) / largest - small_scale_value(code)) <
            std::abs((scale - mean) / largest - nearest))
          nearest = small_scale_value(code);
      scale = small_scale(nearest, largest, mean);
    }
  }
}
// `rows`: the rows of each matrix that the weight is made of
inline void round_to_four_bits(BaseForm base, const Tensor& weight, const LayerParts& rows) {
  const std::span<float> all = floats(weight);
  const auto count = static_cast<size_t>(block_of(format_of(base)));
  std::vector<float> largest, scales;
  for (size_t first = 0; first < all.size(); first += count) {
    largest.push_back(0);
    for (const float value : all.subspan(first, count))
      largest.back() = std::max(largest.back(), std::abs(value));
  }
  scales = largest;
  auto begin = scales.begin();
  for (const int64_t of_matrix : scales_of_each(rows, weight.shape[-1])) {
    if (base == BaseForm::kNf4Double && of_matrix > 0)
      round_scales({begin, static_cast<size_t>(of_matrix)}), begin += of_matrix;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t b = i / count;
    all[i] = base == BaseForm::kMxfp4 ? to_mxfp4(all[i], largest[b]) : to_nf4(all[i], largest[b], scales[b]);
  }
}

// Random values, written to both: to `plain` those that are left in 4 bits. Returns the latter.
inline std::vector<NamedTensor> write_rounded(TrainState& kept, TrainState& plain, BaseForm base,
                                              HostTensors& make) {
  std::vector<NamedTensor> rounded;
  for (const ParamPlace& place : kept.store().layout().places) {
    const Tensor values = make.normal(place.info.shape, 0.05);
    kept.store().writer()(place, values);
    if (place.stored == StoredAs::kOnly) {
      const Linear& linear = present(place.info.linear);
      round_to_four_bits(base, values,
                         linear.of_experts() ? LayerParts{values.numel() / values.shape[-1]}
                                             : adapter_rows(kept.shape().model.lora, linear));
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
inline void expect_bits_of_rounded_weights(const DeviceTraits& device, const RunShape& shape, BaseForm base) {
  HostTensors make;
  LoraSteps kept(device, lora_four_bits_shape(shape, base)), plain(device, shape);
  write_rounded(kept.state, plain.state, base, make);
  int64_t stored = 0;
  for (const ParamPlace& place : kept.state.store().layout().places) {
    const bool is_matrix = place.info.block >= 0 && place.info.decay &&
                           place.info.adapter == AdapterMatrix::kNone &&
                           place.info.part != ParamPart::kRouter &&
                           (!shape.base_of_experts || present(place.info.linear).of_experts());
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

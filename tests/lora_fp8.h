// Adapters on top of weights that have FP8 values alone, on any device.
#pragma once

#include "kernels/base/fp8.h"
#include "kernels/base/fp8_scale.h"
#include "tests/lora_steps.h"
#include "train/session/decoder.h"

namespace tessera::testing {

inline RunShape lora_fp8_shape(const ModelConfig& model, Fp8Config config, DType dtype = DType::kF32) {
  RunShape shape = lora_shape(model, dtype);
  config.gemm_dtype = GemmDtype::kFp8;
  shape.fp8 = config;
  return shape;
}

// The values of a weight that are kept of it in FP8, by its own largest element
inline void round_to_e4m3(const Tensor& weight) {
  float largest = 0;
  for (const float value : floats(weight)) largest = std::max(largest, std::abs(value));
  const float scale = std::bit_cast<float>(fp8_scale(std::bit_cast<uint32_t>(largest), true, 0));
  for (float& value : floats(weight)) value = scale * round_to_fp8(value / scale, kE4M3);
}

// All weights of a store as an evaluation reads them
inline std::vector<NamedTensor> weights_read(ParamStore& store, const Stream& stream, HostTensors& make) {
  std::vector<NamedTensor> all;
  for (const ParamPlace& place : store.layout().places) all.push_back({place.info.name, {}});
  for (size_t b = 0; b < store.layout().buckets.size(); ++b) {
    store.weight_home().whole(b);
    for (const ParamPlace& place : store.layout().places) {
      if (place.bucket != b) continue;
      const Tensor host = all[place.index].tensor = make.poisoned(place.info.shape);
      stream.run(Copy{store.weight_home().whole_weight(place), host});
      stream.synchronize();
    }
  }
  return all;
}
inline std::vector<NamedTensor> weights_read(TrainState& state, HostTensors& make) {
  return weights_read(state.store(), state.stream(), make);
}

// The gradients of the adapters, by the index of their parameters
inline std::vector<Tensor> adapter_gradients(LoraSteps& steps, HostTensors& make) {
  std::vector<Tensor> all;
  for_each_param(steps.state.grads(), steps.state.shape().model,
                 [&](const ParamInfo& info, const Tensor& gradient) {
                   all.push_back(info.adapter == AdapterMatrix::kNone ? Tensor{} : make.poisoned(info.shape));
                   if (all.back()) steps.state.stream().run(Copy{gradient, all.back()});
                 });
  steps.state.stream().synchronize();
  return all;
}

// B is 0 at first: the first loss is that of the model that is trained in FP8, and the gradient of B follows
// from that of the weight, whose GEMM is in FP8 in neither.
inline void expect_first_step_of_fp8_training(const DeviceTraits& device, const ModelConfig& model,
                                              const Fp8Config& config, DType dtype, double loss_tolerance,
                                              double tolerance) {
  HostTensors make;
  LoraSteps adapted(device, lora_fp8_shape(model, config, dtype)),
      whole(device, lora_fp8_shape(model.base(), config, dtype));
  const ParamLayout& layout = adapted.state.store().layout();
  const std::vector<NamedTensor> weights = weights_read(adapted.state, make);
  const TrainState::StepResult one = adapted.step(1), all = whole.step(1);
  EXPECT_NEAR(one.loss, all.loss, loss_tolerance * all.loss);
  const std::vector<Tensor> found = adapter_gradients(adapted, make);
  for (const NamedTensor& dw : on_host(whole.state.stream(), whole.state.grads(), model.base(), make)) {
    const auto of = adapter_of(layout, dw.name);
    if (!of) continue;
    const auto [da, db] = gradients_of_adapter(dw.tensor, weights[of->a].tensor, weights[of->b].tensor,
                                               of->layers, static_cast<double>(model.lora.scale()), make);
    EXPECT_LT(relative_error(found[of->b], db), tolerance) << dw.name;
    for (const float value : floats(found[of->a])) ASSERT_EQ(value, 0) << dw.name;
  }
}

// The model with adapters in bf16 or fp32 whose frozen weights are what is kept in FP8
inline void take_weights_of(LoraSteps& to, const std::vector<NamedTensor>& weights) {
  for (const ParamPlace& place : to.state.store().layout().places)
    to.state.store().writer()(place, weights[place.index].tensor);
}

// What an evaluation and a text that is continued read are the values that are kept, to the bit; the loss and
// the gradients of a step differ from those of a step with these values by the roundings of x and dy. Every
// expert is active, since a rounding that changed a choice would change the whole gradient.
inline void expect_weights_are_those_kept(const DeviceTraits& device, ModelConfig model,
                                          const Fp8Config& config, DType dtype) {
  HostTensors make;
  model.experts.active = model.experts.count;
  LoraSteps kept(device, lora_fp8_shape(model, config, dtype)), plain(device, lora_shape(model, dtype));
  std::vector<NamedTensor> expected = weights_read(plain.state, make);
  int64_t rounded = 0;
  for (const ParamPlace& place : kept.state.store().layout().places)
    if (place.stored == StoredAs::kOnly) round_to_e4m3(expected[place.index].tensor), ++rounded;
  EXPECT_GT(rounded, 0);
  const auto compare = [&] {
    const std::vector<NamedTensor> found = weights_read(kept.state, make);
    for (size_t i = 0; i < found.size(); ++i)
      if (kept.state.store().layout().places[i].info.adapter == AdapterMatrix::kNone) {
        EXPECT_EQ(relative_error(found[i].tensor, expected[i].tensor), 0) << found[i].name;
      }
  };
  compare();
  take_weights_of(plain, expected);
  kept.set_b(), plain.set_b();
  HostTensors again;  // set_b() draws the same values
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8}, targets{2, 3, 4, 5, 6, 7, 8, 9};
  const SequencesView text{.tokens = tokens, .targets = targets};
  const auto evaluate = [&](LoraSteps& steps) { return steps.state.session().evaluate(text, 1); };
  const auto logits = [&](LoraSteps& steps) {
    Decoder decoder(steps.state.session(), {.capacity = model.context});
    decoder.start(0, tokens, 0);
    decoder.next({}, 1);
    return decoder.logits(0);
  };
  EXPECT_EQ(evaluate(kept), evaluate(plain));
  EXPECT_EQ(logits(kept), logits(plain));
  const TrainState::StepResult one = kept.step(1), other = plain.step(1);
  EXPECT_NE(one.loss, other.loss) << "nothing is multiplied in FP8";
  EXPECT_NEAR(one.loss, other.loss, tolerance::kFp8ModelLoss * other.loss);
  const std::vector<Tensor> found = adapter_gradients(kept, make), want = adapter_gradients(plain, make);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i]) {
      EXPECT_LT(relative_error(found[i], want[i]), tolerance::kFp8ModelGradient)
          << kept.state.store().layout().places[i].info.name;
    }
  for (int number = 2; number < 4; ++number) kept.step(number);
  compare();  // frozen
}

}  // namespace tessera::testing

// Adapters on any device: their gradients against those of the whole weights, W + scale B A.
#pragma once

#include <cmath>

#include "model/lora.h"
#include "tests/model_families.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"

namespace tessera::testing {

inline ModelConfig with_adapters(ModelConfig model, int64_t rank, AdaptedParts parts = LoraConfig{}.parts) {
  model.lora = {.rank = rank,
                .alpha = 6,
                .parts = parts,
                .split_qkv = model.positions == Positions::kRope};  // as splits_qkv() in model/formats
  return model;
}

inline RunShape lora_shape(const ModelConfig& model, DType dtype = DType::kF32) {
  return {.model = model,
          .micro_batch = 2,
          .micro_steps = 2,
          .sequence_length = 8,
          .dtype = dtype,
          .freeze = model.lora ? Freeze::all_but_adapters() : Freeze{}};
}

struct LoraSteps {
  std::unique_ptr<Backend> be;
  Arena arena;
  TrainState state;

  LoraSteps(const DeviceTraits& device, const RunShape& shape)
      : be(make_backend(device)), arena(make_arena(device)), state(*be, arena, shape) {
    state.initialize(3);
  }
  // B is 0 at first, and A then has no gradient.
  void set_b() {
    HostTensors make;
    for (const ParamPlace& place : state.store().layout().places)
      if (place.info.adapter == AdapterMatrix::kB)
        state.store().writer()(place, make.normal(place.info.shape, 0.1));
  }
  TrainState::StepResult step(int number) {
    const RunShape& shape = state.shape();
    std::vector<int32_t> tokens, targets;
    for (int t = 0; t < shape.tokens_per_step(); ++t)
      tokens.push_back(t * 7 % 13), targets.push_back((t * 7 + 3) % 13);
    state.step({.tokens = tokens, .targets = targets}, shape.tokens_per_step(), kTestOptimizer, 1e-2, number);
    return state.finish_step();
  }
  std::vector<NamedTensor> weights(HostTensors& make) {
    return on_host(state.stream(), state.store().weights(), state.shape().model, make);
  }
};

// The A and B of a weight, among the parameters of a layout
struct AdapterOf {
  size_t a = 0, b = 0;
  LayerParts layers{};
};
inline std::optional<AdapterOf> adapter_of(const ParamLayout& layout, const std::string& weight) {
  if (!weight.ends_with("weight")) return {};
  const std::string layer = weight.substr(0, weight.size() - std::string_view("weight").size());
  AdapterOf found;
  for (const ParamPlace& place : layout.places)
    if (place.info.adapter != AdapterMatrix::kNone && place.info.name.starts_with(layer)) {
      (place.info.adapter == AdapterMatrix::kA ? found.a : found.b) = place.index;
      found.layers = place.info.layers;
    }
  return found.b > 0 ? std::optional(found) : std::nullopt;
}

// dB = scale dW A^T and dA = scale B^T dW, for the rows of each layer of the matrix, and of each expert's
inline std::pair<Tensor, Tensor> gradients_of_adapter(const Tensor& dw, const Tensor& a, const Tensor& b,
                                                      const LayerParts& layers, double scale,
                                                      HostTensors& make) {
  const int64_t C = a.shape[-1], r = b.shape[-1], experts = a.shape.rank() == 3 ? a.shape[0] : 1;
  const Tensor da = make.zeros(a.shape), db = make.zeros(b.shape);
  int64_t o = 0, of_a = 0;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t p = 0; p < count_of(layers); ++p, of_a += r)
      for (const int64_t end = o + layers[static_cast<size_t>(p)]; o < end; ++o)
        for (int64_t k = 0; k < r; ++k)
          for (int64_t c = 0; c < C; ++c) {
            const float d = static_cast<float>(scale) * dw.as<float>()[o * C + c];
            db.as<float>()[o * r + k] += d * a.as<float>()[(of_a + k) * C + c];
            da.as<float>()[(of_a + k) * C + c] += d * b.as<float>()[o * r + k];
          }
  return {da, db};
}

// A run with adapters, and one of all weights whose values have them added: the same loss, and gradients that
// follow from those of the weights. After three steps what is frozen has its bits.
inline void expect_gradients_of_whole_weights(const DeviceTraits& device, const ModelConfig& model,
                                              DType dtype, double loss_tolerance, double tolerance) {
  HostTensors make;
  LoraSteps adapted(device, lora_shape(model, dtype)), whole(device, lora_shape(model.base(), dtype));
  adapted.set_b();
  const ParamLayout& layout = adapted.state.store().layout();
  const std::vector<NamedTensor> before = adapted.weights(make);
  for (const ParamPlace& place : whole.state.store().layout().places) {
    const Tensor weight = make.empty(place.info.shape);
    std::copy_n(before[place.index].tensor.as<float>(), weight.numel(), weight.as<float>());
    if (const auto of = adapter_of(layout, place.info.name))
      add_adapter(weight, before[of->a].tensor, before[of->b].tensor, of->layers, model.lora.scale());
    whole.state.store().writer()(place, weight);
  }
  const TrainState::StepResult one = adapted.step(1), all = whole.step(1);
  EXPECT_NEAR(one.loss, all.loss, loss_tolerance * all.loss);
  const auto gradients = [&](LoraSteps& steps) {
    return on_host(steps.state.stream(), steps.state.grads(), steps.state.shape().model, make);
  };
  const std::vector<NamedTensor> whole_gradients = gradients(whole);
  std::vector<NamedTensor> own(layout.places.size());
  double squares = 0;
  {
    size_t index = 0;
    for_each_param(adapted.state.grads(), model, [&](const ParamInfo& info, const Tensor& gradient) {
      NamedTensor& to = own[index++];
      if (info.adapter == AdapterMatrix::kNone) {
        EXPECT_TRUE(!gradient || info.part == ParamPart::kNorms) << info.name;  // theirs are discarded
        return;
      }
      to = {info.name, make.poisoned(info.shape)};
      adapted.state.stream().run(Copy{gradient, to.tensor});
    });
    adapted.state.stream().synchronize();
  }
  int64_t adapters = 0, expected = 0;
  for (const ParamPlace& place : layout.places)
    expected += place.info.linear && place.info.adapter == AdapterMatrix::kNone &&
                place.info.name.ends_with("weight") && adapts(model.lora, *place.info.linear);
  for (const NamedTensor& dw : whole_gradients) {
    const auto of = adapter_of(layout, dw.name);
    if (!of) continue;
    ++adapters;
    const auto [da, db] = gradients_of_adapter(dw.tensor, before[of->a].tensor, before[of->b].tensor,
                                               of->layers, model.lora.scale(), make);
    EXPECT_LT(relative_error(own[of->a].tensor, da), tolerance) << dw.name;
    EXPECT_LT(relative_error(own[of->b].tensor, db), tolerance) << dw.name;
    for (const Tensor& gradient : {own[of->a].tensor, own[of->b].tensor})
      for (const float value : floats(gradient)) squares += static_cast<double>(value) * value;
  }
  EXPECT_EQ(adapters, expected);
  const int64_t parts = model.lora.adapts(Adapted::kAttention) + model.lora.adapts(Adapted::kMlp);
  if (!model.experts) {
    EXPECT_EQ(adapters, 2 * parts * model.layers);
  }
  EXPECT_NEAR(one.grad_norm, std::sqrt(squares), tolerance::kGradientNorm * one.grad_norm);

  for (int i = 2; i <= 3; ++i) adapted.step(i);
  const std::vector<NamedTensor> after = adapted.weights(make);
  for (const ParamPlace& place : layout.places) {
    const Tensor &old = before[place.index].tensor, &now = after[place.index].tensor;
    EXPECT_EQ(std::memcmp(old.data, now.data, old.bytes()) == 0, place.info.adapter == AdapterMatrix::kNone)
        << place.info.name;
  }
}

// One of each way in which a family has its layers
inline std::vector<ModelConfig> models_with_adapters(int64_t channels, int64_t rank) {
  const ModelConfig gpt2{.vocab_size = 61, .context = 24, .layers = 2, .heads = 2, .channels = channels};
  ModelConfig qwen3 = with_qwen3_parts(gpt2);
  qwen3.kv_heads = 1;
  ModelConfig qwen2 = qwen3;
  qwen2.bias = Bias::kQkv;
  qwen2.qk_norm = QkNorm::kNone;
  qwen2.window = Windows({{.window = 5}, {.window = Windows::kFull}});
  ModelConfig biases = with_llama_parts(gpt2);
  biases.bias = Bias::kAll;
  ModelConfig relu = gpt2;
  relu.mlp = Mlp::kGeluExact;
  ModelConfig phi3 = with_adapters(with_llama_parts(gpt2), rank);
  phi3.rope.share = 0.5, phi3.lora.split_qkv = false;
  return {with_adapters(gpt2, rank),
          with_adapters(qwen3, rank),
          with_adapters(qwen2, rank, AdaptedParts::of({Adapted::kAttention})),
          with_adapters(relu, rank, AdaptedParts::of({Adapted::kMlp})),
          with_adapters(biases, rank),
          phi3};
}

// Of experts that have biases, or a shared one and blocks without, or are the only ones with adapters
inline std::vector<ModelConfig> models_with_adapted_experts(int64_t channels, int64_t rank) {
  const ModelConfig llama =
      with_llama_parts({.vocab_size = 61, .context = 24, .layers = 3, .heads = 2, .channels = channels});
  ModelConfig shared = with_experts(llama);
  shared.experts.shared_width = 40, shared.experts.renormalise = false, shared.experts.dense_layers = {1};
  shared.bias = Bias::kQkv;
  ModelConfig sinks = with_gpt_oss_parts(llama);
  sinks.head_dim = channels / 2;
  ModelConfig one = with_experts(llama);
  one.experts.count = one.experts.active = 1, one.norm_place = NormPlace::kAfter;
  const AdaptedParts all = AdaptedParts::of({Adapted::kAttention, Adapted::kMlp, Adapted::kRouter});
  return {with_adapters(shared, rank, all), with_adapters(sinks, rank, all), with_adapters(one, rank),
          with_adapters(with_experts(llama), rank, AdaptedParts::of({Adapted::kMlp})),
          with_adapters(shared, rank, AdaptedParts::of({Adapted::kRouter}))};
}

inline std::vector<ModelConfig> all_models_with_adapters(int64_t channels, int64_t rank) {
  std::vector<ModelConfig> all = models_with_adapters(channels, rank);
  for (ModelConfig& model : models_with_adapted_experts(channels, rank)) all.push_back(std::move(model));
  return all;
}

}  // namespace tessera::testing

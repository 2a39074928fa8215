// Training steps whose weights are stored, gathered or copied as FP8 values, on any device.
#pragma once

#include "tests/data_parallel.h"
#include "tests/lora_fp8.h"

namespace tessera::testing {

// Adapters; all weights; all of a model with biases; of one whose blocks are gathered as they are, since
// their backward reads W_O; of experts, beside a block without experts; adapters of these
struct Trained8 {
  const char* name;
  RunShape (*shape)(RunShape);
};
inline RunShape in_fp8(RunShape shape) {
  shape.model.channels = 32, shape.model.head_dim = 16, shape.sequence_length = 16;
  shape.fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true, .head = true};
  return shape;
}
inline RunShape with_experts_in_fp8(RunShape shape) {
  shape = in_fp8(shape);
  shape.model = with_experts(with_qwen3_parts(shape.model));
  shape.model.experts.width = 32, shape.model.experts.shared_width = 48;
  shape.model.experts.dense_layers = {1};
  return shape;
}
inline constexpr Trained8 kTrained[] = {
    {"adapters",
     [](RunShape shape) {
       shape = in_fp8(shape);
       shape.model = with_adapters(shape.model, 4);
       shape.freeze = Freeze::all_but_adapters();
       return shape;
     }},
    {"all",
     [](RunShape shape) {
       shape = in_fp8(shape);
       shape.model = with_qwen3_parts(shape.model);
       shape.fp8.dw = true;
       return shape;
     }},
    {"biases",
     [](RunShape shape) {
       shape = in_fp8(shape);
       shape.model = with_llama_parts(shape.model);
       shape.model.bias = Bias::kAll, shape.model.norm = NormKind::kLayerNorm;
       shape.model.mlp = Mlp::kGelu, shape.model.tied = true;
       return shape;
     }},
    {"gpt2", in_fp8},
    {"experts", with_experts_in_fp8},
    {"adapters of experts",
     [](RunShape shape) {
       shape = with_experts_in_fp8(shape);
       shape.model = with_adapters(shape.model, 4);
       shape.freeze = Freeze::all_but_adapters();
       return shape;
     }},
};

// On a GPU in bf16, with a head dim that the fused kernels serve
inline RunShape stored_shape(const Trained8& trained, const RunShape& shared, const DeviceTraits& device) {
  RunShape shape = trained.shape(shared);
  if (device.device == Device::kCuda)
    shape.dtype = DType::kBF16, shape.model.channels = 128, shape.model.head_dim = 64;
  return shape;
}

// One element of each matrix is so large that a part without it would have another scale.
inline void set_outliers(TrainState& state) {
  HostTensors make;
  for (const ParamPlace& place : state.store().layout().places) {
    if (!place.info.decay || place.info.adapter != AdapterMatrix::kNone) continue;
    const Tensor values = make.normal(place.info.shape, 0.02);
    floats(values)[floats(values).size() / 3] = 0.5f;
    state.store().writer()(place, values);
  }
}

// Of these ranks. One micro-step, so that gradients have the same sums however they are split.
inline void expect_gathered_gives_the_bits_of_whole(const Ranks& ranks, const DeviceTraits& device) {
  for (const Trained8& trained : kTrained) {
    SCOPED_TRACE(trained.name);
    const auto run = [&](Shard shard, const Offload& offload) {
      RunShape shape = stored_shape(trained, shared_shape(ranks.size, shard), device);
      shape.micro_batch = shape.micro_steps, shape.micro_steps = 1;
      shape.offload = offload, shape.poison = offload ? Poison::kYes : Poison::kNo;
      std::string weights;
      Fp8Scales scales;
      const std::vector<double> losses =
          run_shared(ranks, {.device = device,
                             .shape = shape,
                             .steps = 4,
                             .before = set_outliers,
                             .after = [&](TrainState& state) {
                               HostTensors make;
                               for (const NamedTensor& one : weights_read(state, make))
                                 weights.append(one.tensor.as<char>(), one.tensor.bytes());
                               scales = state.fp8().scales(state.stream());
                             }});
      return std::tuple(losses, weights, scales);
    };
    const auto whole = run(Shard::kOptimizer, {});
    EXPECT_TRUE(run(Shard::kWeights, {}) == whole);
    EXPECT_TRUE(run(Shard::kWeights, {.weights = true}) == whole);
  }
}

}  // namespace tessera::testing

// Steps whose MLPs run a chunk of their rows at a time, against steps with whole MLPs, on any device.
#pragma once

#include "tests/lora_steps.h"
#include "tests/model_families.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"

namespace tessera::testing {

struct ChunkedModel {
  const char* name;
  ModelConfig model;
};
// Of two blocks: each MLP and its activation, biases, dropout, adapters
inline std::vector<ChunkedModel> models_to_chunk(int64_t channels) {
  const ModelConfig gpt2{.vocab_size = 61, .context = 48, .layers = 2, .heads = 2, .channels = channels};
  std::vector<ChunkedModel> all{
      {"gpt2", gpt2}, {"relu", gpt2}, {"dropout", gpt2}, {"qwen3", with_qwen3_parts(gpt2)}};
  all[1].model.mlp = Mlp::kRelu, all[1].model.mlp_width = 3 * channels, all[1].model.bias = Bias::kNone;
  all[2].model.dropout = {.embedding = 0.1, .residual = 0.25, .attention = 0.1};
  all.push_back({"adapters of gpt2", with_adapters(gpt2, 3)});
  AdaptedParts mlp;
  mlp.add(Adapted::kMlp);
  all.push_back({"adapters of qwen3's MLP", with_adapters(all[3].model, 3, mlp)});
  return all;
}
// Two micro-batches of 111 tokens
inline RunShape shape_to_chunk(const ModelConfig& model, DType dtype = DType::kF32) {
  return {.model = model,
          .micro_batch = 3,
          .micro_steps = 2,
          .sequence_length = 37,
          .dtype = dtype,
          .freeze = model.lora ? Freeze::all_but_adapters() : Freeze{}};
}

// The B of adapters are 0 at first, and their A would then have no gradient.
inline StepsResult steps_in_chunks(const DeviceTraits& device, RunShape shape, int64_t chunk,
                                   HostTensors& make) {
  shape.mlp_chunk = chunk;
  return run_steps(device, shape, 2, make, 1e-3, [](TrainState& state) {
    HostTensors values;
    for (const ParamPlace& place : state.store().layout().places)
      if (place.info.adapter == AdapterMatrix::kB)
        state.store().writer()(place, values.normal(place.info.shape, 0.1));
  });
}

// What a chunk changes is the order in which sums are rounded: a GEMM of other sizes, and gradients of the
// MLP's weights that are added chunk by chunk.
struct ChunkBounds {
  double first_loss, gradient, losses;
};
inline void expect_near_the_whole(const StepsResult& chunked, const StepsResult& whole,
                                  const ChunkBounds& bounds) {
  EXPECT_NEAR(chunked.losses[0] / whole.losses[0], 1, bounds.first_loss);
  EXPECT_NEAR(chunked.losses[1] / whole.losses[1], 1, bounds.losses);
  EXPECT_NEAR(chunked.grad_norms[0] / whole.grad_norms[0], 1, bounds.gradient);
  ASSERT_EQ(chunked.first_gradients.size(), whole.first_gradients.size());
  for (size_t i = 0; i < whole.first_gradients.size(); ++i)
    EXPECT_LT(relative_error(chunked.first_gradients[i].tensor, whole.first_gradients[i].tensor),
              bounds.gradient)
        << whole.first_gradients[i].name;
}

}  // namespace tessera::testing

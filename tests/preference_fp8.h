// Losses of pairs in FP8, on any device: the reference rounds as the model does.
#pragma once

#include "model/preference_loss.h"
#include "tests/pairs.h"
#include "tests/stored_fp8.h"

namespace tessera::testing {

// What is trained, and where the reference is
enum class PairsIn8 : uint8_t { kAll, kAdapters, kAdaptersOverItsOwnReference };
inline constexpr PairsIn8 kPairsIn8[] = {PairsIn8::kAll, PairsIn8::kAdapters,
                                         PairsIn8::kAdaptersOverItsOwnReference};

// Pairs of 11 prompts in 8 sequences, in micro-batches of 4
inline RunShape pairs_in_fp8(PairsIn8 of, const ModelConfig& model, const Fp8Config& fp8,
                             DType dtype = DType::kF32) {
  RunShape shape{.model = model,
                 .micro_batch = 4,
                 .micro_steps = 2,
                 .sequence_length = kPairTokens,
                 .dtype = dtype,
                 .loss = preference_loss({.kind = PreferenceKind::kDpo, .beta = 0.5}),
                 .documents = true,
                 .cuda_graphs = true,
                 .fp8 = fp8};
  shape.fp8.gemm_dtype = GemmDtype::kFp8;
  if (of == PairsIn8::kAll) return shape;
  shape.model = with_adapters(shape.model, 4);
  shape.freeze = Freeze::all_but_adapters();
  shape.reference_without_adapters = of == PairsIn8::kAdapters;
  return shape;
}

struct PairSteps {
  std::vector<double> losses, grad_norms;
  bool operator==(const PairSteps&) const = default;
};
inline PairSteps steps_of_pairs(const DeviceTraits& device, const RunShape& shape, double learning_rate,
                                const std::function<void(TrainState&)>& before = {}) {
  LoraSteps run(device, shape);
  if (run.state.has_reference()) run.state.reference().initialize(3);  // the weights of the training
  if (before) before(run.state);
  const std::vector<PairOfTexts> pairs = random_pairs(11);
  const Sequences all = packed_pairs(pairs, 100, 8);
  PairSteps found;
  for (int step = 1; step <= 5; ++step) {
    run.state.step(all, std::ssize(pairs), kTestOptimizer, learning_rate, step);
    const TrainState::StepResult result = run.state.finish_step();
    found.losses.push_back(result.loss), found.grad_norms.push_back(result.grad_norm);
  }
  return found;
}

// Models with biases and GELU, and with gates and heads that share keys
inline std::vector<ModelConfig> models_of_pairs(int64_t channels = 32) {
  const ModelConfig gpt2{
      .vocab_size = 61, .context = kPairTokens, .layers = 3, .heads = 2, .channels = channels};
  ModelConfig qwen3 = with_qwen3_parts(gpt2);
  qwen3.kv_heads = 1;
  return {gpt2, qwen3};
}

// With a rate of 0 the model stays equal to the reference, so the loss of every step is ln 2. The first step
// has scales of the tensors themselves, and later ones those of the step before. `of_adapters`: the tolerance
// with adapters. They add 0, but sums with an adapter are rounded in another place than sums without.
inline void expect_pairs_in_fp8_begin_at_logarithm_of_two(const DeviceTraits& device, double of_adapters) {
  const bool cuda = device.device == Device::kCuda;  // in bf16, with a head dim that the fused kernels serve
  for (const ModelConfig& model : models_of_pairs(cuda ? 128 : 32))
    for (const PairsIn8 of : kPairsIn8)
      for (const Fp8Config& fp8 : {Fp8Config{.edges = true, .head = true}, Fp8Config{.edges = true},
                                   Fp8Config{.scaling = Fp8Scaling::kCurrent, .head = true}}) {
        SCOPED_TRACE(fmt::format("{}, trained {}, {}", name_of(model.mlp), static_cast<int>(of),
                                 fp8_text(model, fp8)));
        RunShape shape = pairs_in_fp8(of, model, fp8, cuda ? DType::kBF16 : DType::kF32);
        for (const double loss : steps_of_pairs(device, shape, 0).losses)
          EXPECT_NEAR(loss, std::log(2.0), of == PairsIn8::kAll ? 1e-6 : of_adapters);
        const PairSteps trained = steps_of_pairs(device, shape, 1e-2);
        EXPECT_LT(trained.losses.back(), 0.97 * trained.losses.front());
        // Operands that are rounded by the operation before, and by passes of their own
        EXPECT_TRUE(steps_of_pairs(device, shape, 1e-2,
                                   [](TrainState& state) { state.fp8().read_again(true); }) == trained);
        shape.fp8 = {};
        EXPECT_NE(steps_of_pairs(device, shape, 1e-2).losses[1], trained.losses[1])
            << "nothing is multiplied in FP8";
      }
}

}  // namespace tessera::testing

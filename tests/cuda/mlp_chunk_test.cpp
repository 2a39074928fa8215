// train.mlp_chunk on CUDA: an MLP that runs over some rows at a time computes what the whole one does.
#include "tests/cuda/twin.h"
#include "tests/mlp_chunks.h"

namespace tessera::testing {
namespace {

struct CudaMlpChunks : CudaTest {
  const DeviceTraits& traits() { return cuda().backend().traits(); }
  StepsResult in_chunks(const RunShape& shape, int64_t chunk, HostTensors& make) {
    return steps_in_chunks(traits(), shape, chunk, make);
  }
};

// Each is as near to the exact one as the bound of a whole model in this dtype says.
ChunkBounds cuda_bounds(DType dtype, const ModelConfig& model) {
  if (dtype == DType::kF32) {
    const double each = 2 * tolerance::kCudaF32AgainstPyTorch;
    return {.first_loss = each, .gradient = each, .losses = each};
  }
  return {.first_loss = 2 * tolerance::kBf16ModelLoss,
          .gradient =
              2 * (model.mlp == Mlp::kRelu ? tolerance::kBf16ReluGradient : tolerance::kBf16ModelGradient),
          .losses = 2 * tolerance::kBf16ModelLoss};
}

TEST_F(CudaMlpChunks, ChangeNothingButRounding) {
  for (const DType dtype : kReal)
    for (const auto& [name, model] : models_to_chunk(128)) {
      HostTensors make;
      const RunShape shape = shape_to_chunk(model, dtype);
      const StepsResult whole = in_chunks(shape, 0, make);
      for (const int64_t chunk : {7, 50, 110}) {
        SCOPED_TRACE(fmt::format("{}, {}, chunks of {}", name_of(dtype), name, chunk));
        expect_near_the_whole(in_chunks(shape, chunk, make), whole, cuda_bounds(dtype, model));
      }
      expect_same_bits(in_chunks(shape, 111, make), whole);
    }
}

TEST_F(CudaMlpChunks, HaveTheSameBitsWhateverIsRecomputed) {
  for (const auto& [name, model] : models_to_chunk(128)) {
    HostTensors make;
    RunShape shape = shape_to_chunk(model, DType::kBF16);
    const StepsResult kept = in_chunks(shape, 50, make);
    expect_same_bits(in_chunks(shape, 50, make), kept);
    for (const Keep keep : {kKeepAllButMlp, kKeepAttention, kKeepOutputs, Keep{Recomputed::kNorms}}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, text_of(keep)));
      shape.keep = keep;
      expect_same_bits(in_chunks(shape, 50, make), kept);
    }
  }
}

TEST_F(CudaMlpChunks, ThePlanIsTheStep) {
  for (const auto& [name, model] : models_to_chunk(128))
    for (const Keep keep : {kKeepAll, kKeepOutputs}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, text_of(keep)));
      RunShape shape = shape_to_chunk(model, DType::kBF16);
      shape.keep = keep, shape.mlp_chunk = 50;
      expect_plan_is_the_step(traits(), shape);
    }
}

// In FP8, with the scales of the step before: rounded by what writes x and dy, or by passes of their own
TEST_F(CudaMlpChunks, InFp8RoundWhereTheyWriteToTheSameBits) {
  if (traits().arch < 89) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  const ModelConfig gpt2{.vocab_size = 61, .context = 32, .layers = 3, .heads = 2, .channels = 128};
  for (const ModelConfig& model : {gpt2, with_qwen3_parts(gpt2)})
    for (const Keep keep : {kKeepAll, kKeepOutputs}) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(model.mlp), text_of(keep)));
      RunShape shape{.model = model,
                     .micro_batch = 4,
                     .micro_steps = 2,
                     .sequence_length = 32,
                     .dtype = DType::kBF16,
                     .keep = keep,
                     .mlp_chunk = 48,
                     .fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true, .head = true}};
      HostTensors make;
      const auto steps = [&](bool read_again) {
        return run_steps(traits(), shape, 3, make, 1e-3,
                         [&](TrainState& state) { state.fp8().read_again(read_again); });
      };
      const StepsResult written = steps(false);
      expect_same_bits(written, steps(true));
      shape.mlp_chunk = 0;
      const StepsResult whole = steps(false);
      for (size_t i = 0; i < whole.losses.size(); ++i)
        EXPECT_NEAR(written.losses[i] / whole.losses[i], 1, tolerance::kFp8ModelLoss);
      shape.mlp_chunk = 48;
      expect_plan_is_the_step(traits(), shape);
    }
}

}  // namespace
}  // namespace tessera::testing

// train.mlp_chunk: an MLP that runs over some rows at a time computes what the whole one does.
#include "tests/data_parallel.h"
#include "tests/frozen_steps.h"
#include "tests/mlp_chunks.h"

namespace tessera::testing {
namespace {

constexpr Keep kChunkedKeeps[] = {kKeepAll,
                                  kKeepAllButMlp,
                                  kKeepAttention,
                                  kKeepOutputs,
                                  {Recomputed::kNorms},
                                  {Recomputed::kAttention},
                                  {Recomputed::kActivation},
                                  {Recomputed::kNorms, Recomputed::kActivation}};

constexpr int64_t kOddChunks[] = {1, 7, 37, 50, 110};  // of 111 rows: most leave a smaller one at the end
constexpr ChunkBounds kBounds{.first_loss = tolerance::kFirstLossOfRanks,
                              .gradient = tolerance::kCpuAgainstPyTorch,
                              .losses = tolerance::kLossesOfRanks};

StepsResult in_chunks(const RunShape& shape, int64_t chunk, HostTensors& make) {
  return steps_in_chunks({}, shape, chunk, make);
}

TEST(MlpChunks, ChangeNothingButRounding) {
  for (const auto& [name, model] : models_to_chunk(24)) {
    HostTensors make;
    const RunShape shape = shape_to_chunk(model);
    const StepsResult whole = in_chunks(shape, 0, make);
    for (const int64_t chunk : kOddChunks) {
      SCOPED_TRACE(fmt::format("{}, chunks of {}", name, chunk));
      expect_near_the_whole(in_chunks(shape, chunk, make), whole, kBounds);
    }
    for (const int64_t all : {111, 1000}) expect_same_bits(in_chunks(shape, all, make), whole);
  }
}

// The CPU's GEMM of so few rows computes each by itself, but for adapters: the first loss, with its dropout,
// has the same bits.
TEST(MlpChunks, HaveTheBitsOfTheWholeWhereTheGemmHasThem) {
  for (const auto& [name, model] : models_to_chunk(24)) {
    if (model.lora) continue;
    SCOPED_TRACE(name);
    HostTensors make;
    RunShape shape = shape_to_chunk(model);
    shape.micro_batch = 2, shape.sequence_length = 4;
    EXPECT_EQ(in_chunks(shape, 3, make).losses[0], in_chunks(shape, 0, make).losses[0]);
  }
}

TEST(MlpChunks, HaveTheSameBitsWhateverIsRecomputed) {
  for (const auto& [name, model] : models_to_chunk(24)) {
    HostTensors make;
    RunShape shape = shape_to_chunk(model);
    const StepsResult kept = in_chunks(shape, 50, make);
    for (const Keep keep : kChunkedKeeps) {
      SCOPED_TRACE(fmt::format("{}, {}", name, text_of(keep)));
      shape.keep = keep;
      expect_same_bits(in_chunks(shape, 50, make), kept);
    }
  }
}

TEST(MlpChunks, FreezeWhatTheWholeFreezes) {
  for (const ParamPart part : {ParamPart::kMlp, ParamPart::kNorms}) {
    HostTensors make;
    RunShape shape = shape_to_chunk(models_to_chunk(24)[0].model);
    shape.freeze = frozen({part}, {{0, 0}});
    expect_near_the_whole(in_chunks(shape, 50, make), in_chunks(shape, 0, make), kBounds);
  }
}

TEST(MlpChunks, ThePlanIsTheStep) {
  for (const auto& [name, model] : models_to_chunk(24))
    for (const Keep keep : kChunkedKeeps)
      for (const int64_t chunk : {1, 50}) {
        SCOPED_TRACE(fmt::format("{}, {}, chunks of {}", name, text_of(keep), chunk));
        RunShape shape = shape_to_chunk(model);
        shape.keep = keep, shape.mlp_chunk = chunk;
        expect_plan_is_the_step({}, shape);
      }
}

// An evaluation has the losses of the whole. Its hidden layer has the rows of a chunk, too.
TEST(MlpChunks, Evaluate) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  std::vector<int32_t> tokens(111);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 61);
  for (const auto& [name, model] : models_to_chunk(24)) {
    SCOPED_TRACE(name);
    const auto evaluated = [&](int64_t chunk) {
      RunShape shape = shape_to_chunk(model);
      shape.mlp_chunk = chunk;
      Arena arena = Arena::host();
      TrainState state(*be, arena, shape);
      state.initialize(5);
      return state.session().evaluate({.tokens = tokens, .targets = tokens}, 3);
    };
    EXPECT_NEAR(evaluated(50) / evaluated(0), 1, tolerance::kFirstLossOfRanks);
  }
}

// Where blocks recompute their MLP, what a chunk saves is the hidden layer of the other rows, which all
// blocks share: F elements a row, and before the activation F or, gated, 2 F more.
TEST(MlpChunks, SpareTheHiddenLayerOfTheOtherRows) {
  const DeviceTraits gpu{.device = Device::kCuda, .arch = 90};
  const ModelConfig plain{.vocab_size = 512, .context = 131072, .layers = 4, .heads = 8, .channels = 512};
  for (const bool gated : {false, true}) {
    RunShape shape = shape_to_chunk(gated ? with_llama_parts(plain) : plain, DType::kBF16);
    shape.micro_batch = shape.micro_steps = 1, shape.sequence_length = plain.context;
    shape.sample_tokens = kNoSamples;
    const auto peak = [&](Keep keep, int64_t chunk) {
      shape.keep = keep, shape.mlp_chunk = chunk, shape.classifier_chunk = 8192;
      return plan_memory(shape, gpu).peak_bytes();
    };
    const int64_t wide = (gated ? 3 : 2) * plain.mlp_width * 2, saved = (plain.context - 8192) * wide;
    for (const Keep keep : {kKeepAllButMlp, kKeepAttention, kKeepOutputs})
      EXPECT_EQ(peak(keep, 0) - peak(keep, 8192), saved) << text_of(keep);
    EXPECT_EQ(peak(kKeepAll, 8192), peak(kKeepAllButMlp, 8192));
  }
}

TEST(MlpChunks, TwoRanksHaveTheLossesOfOne) {
  for (const Shard shard : kAllShards)
    expect_the_losses_of_one(shard, [](RunShape& shape) { shape.mlp_chunk = 5; });
}

}  // namespace
}  // namespace tessera::testing

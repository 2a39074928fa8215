// Models with sparse blocks of attention on CUDA: steps against the CPU, plans, and texts that are continued.
#include <array>
#include <span>

#include "tests/cuda/twin.h"
#include "tests/train_steps.h"
#include "train/session/decoder.h"

namespace tessera::testing {
namespace {

using SparseModels = CudaTest;

// Head dims 64 and 128, learned positions and rotated ones, heads of their own and grouped ones
std::vector<ModelConfig> sparse_models() {
  ModelConfig gpt2{.vocab_size = 301, .context = 1000, .layers = 3, .heads = 2, .channels = 128};
  gpt2.sparse = read_sparse("window:1+global:1,full,window:2+stride:3");
  ModelConfig llama = gpt2;
  llama.heads = 4, llama.kv_heads = 2, llama.channels = 256, llama.head_dim = 128, llama.layers = 2;
  llama.norm = NormKind::kRmsNorm, llama.positions = Positions::kRope, llama.mlp = Mlp::kSwiglu;
  llama.bias = Bias::kNone;
  llama.sparse = read_sparse("window:1+random:1+seed:4");
  return {gpt2, llama};
}

RunShape shape_of(const ModelConfig& model, DType dtype, AttentionKind attention) {
  return {.model = model,
          .micro_batch = 2,
          .micro_steps = 2,
          .sequence_length = 645,
          .dtype = dtype,
          .attention = attention};
}

// The same with blocks that queries choose. In bf16 another rounding may choose another block, so that only
// fp32 is compared.
std::vector<ModelConfig> choosing_models() {
  std::vector<ModelConfig> models = sparse_models();
  models[0].sparse = read_sparse("chosen:2+block:128,full,chosen:3+block:128");
  models[1].sparse = read_sparse("chosen:2+block:128");
  return models;
}

struct SparseModelSteps : CudaTest {
  void expect_steps_of_the_cpu(const ModelConfig& model, std::span<const DType> dtypes) {
    HostTensors make;
    const StepsResult cpu = run_steps({}, shape_of(model, DType::kF32, AttentionKind::kFlash), 3, make);
    for (const DType dtype : dtypes)
      for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
        SCOPED_TRACE(fmt::format("{} heads, {} {}, {}", model.heads, name_of(dtype), name_of(attention),
                                 text_of(model.sparse)));
        const StepsResult gpu =
            run_steps(cuda().backend().traits(), shape_of(model, dtype, attention), 3, make);
        const bool f32 = dtype == DType::kF32;
        for (size_t i = 0; i < gpu.first_gradients.size(); ++i)
          EXPECT_LT(relative_error(gpu.first_gradients[i].tensor, cpu.first_gradients[i].tensor),
                    f32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelGradient)
              << gpu.first_gradients[i].name;
        for (size_t i = 0; i < gpu.losses.size(); ++i)
          EXPECT_NEAR(gpu.losses[i] / cpu.losses[i], 1,
                      f32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelLoss)
              << "step " << i;
      }
  }
};

TEST_F(SparseModelSteps, AgreeWithTheCpu) {
  for (const ModelConfig& model : sparse_models()) expect_steps_of_the_cpu(model, kReal);
}

TEST_F(SparseModelSteps, OfChosenBlocksAgreeWithTheCpu) {
  for (const ModelConfig& model : choosing_models()) expect_steps_of_the_cpu(model, std::array{DType::kF32});
}

// Sparse blocks, and blocks that queries choose
std::vector<ModelConfig> all_models() {
  std::vector<ModelConfig> all = sparse_models();
  for (const ModelConfig& model : choosing_models()) all.push_back(model);
  return all;
}

TEST_F(SparseModels, GraphsAndASecondRunHaveTheSameBits) {
  for (const ModelConfig& model : all_models()) {
    RunShape shape = shape_of(model, DType::kBF16, AttentionKind::kFlash);
    HostTensors make;
    const StepsResult once = run_steps(cuda().backend().traits(), shape, 4, make);
    expect_same_bits(run_steps(cuda().backend().traits(), shape, 4, make), once);
    shape.cuda_graphs = true;
    expect_same_bits(run_steps(cuda().backend().traits(), shape, 4, make), once);
  }
}

TEST_F(SparseModels, ThePlanIsTheStep) {
  for (const ModelConfig& model : all_models())
    for (const DType dtype : kReal)
      expect_plan_is_the_step(cuda().backend().traits(), shape_of(model, dtype, AttentionKind::kFlash));
}

// Texts that grow token by token and in pieces that begin and end within blocks: the logits are those of a
// forward over the whole text.
TEST_F(SparseModels, DecodersHaveTheLogitsOfAForward) {
  for (const ModelConfig& model : all_models())
    for (const DType dtype : kReal) {
      const bool chooses = model.sparse.at(0).chosen > 0;
      if (chooses && dtype != DType::kF32) continue;  // see choosing_models()
      SCOPED_TRACE(fmt::format("{} heads, {}, {}", model.heads, name_of(dtype), text_of(model.sparse)));
      Arena arena = Arena::cuda();
      Session session(cuda().backend(), arena,
                      {.model = model, .batch = 1, .sequence_length = model.context, .dtype = dtype});
      session.initialize(7);
      HostTensors make;
      const auto text = [&](int64_t count) {
        const Tensor ids = make.tokens({count}, model.vocab_size);
        return std::vector<int32_t>{ids.as<int32_t>(), ids.as<int32_t>() + count};
      };
      Decoder decoder(session, {.slots = 2, .capacity = model.context, .prefill = 256});
      EXPECT_FALSE(decoder.is_one_kernel());
      std::vector<std::vector<int32_t>> texts{text(389), text(3)};
      for (const int64_t slot : {0, 1}) decoder.start(slot, texts[static_cast<size_t>(slot)], slot);
      const auto expect_logits = [&] {
        for (const int64_t slot : {0, 1}) {
          const std::vector<float> found = decoder.logits(slot),
                                   wanted = session.last_logits(texts[static_cast<size_t>(slot)], 1);
          double most = 0, worst = 0;
          for (size_t v = 0; v < wanted.size(); ++v) {
            most = std::max(most, std::abs(static_cast<double>(wanted[v])));
            worst = std::max(worst, std::abs(static_cast<double>(found[v]) - static_cast<double>(wanted[v])));
          }
          EXPECT_LE(worst, most * (dtype == DType::kF32 ? tolerance::kCudaF32AgainstPyTorch
                                                        : tolerance::kBf16ModelGradient))
              << "slot " << slot << ", " << texts[static_cast<size_t>(slot)].size() << " tokens";
        }
      };
      expect_logits();
      for (const int64_t more : {1, 120, 135, 11}) {
        for (int64_t i = 0; i < 3; ++i) {
          const std::span<const int32_t> drawn = decoder.next({}, 5);
          for (const size_t slot : {0u, 1u}) texts[slot].push_back(drawn[slot]);
        }
        expect_logits();
        const std::vector<int32_t> piece = text(more);
        for (const int64_t slot : {0, 1}) {
          decoder.append(slot, piece);
          texts[static_cast<size_t>(slot)].insert(texts[static_cast<size_t>(slot)].end(), piece.begin(),
                                                  piece.end());
        }
        expect_logits();
      }
    }
}

TEST_F(SparseModels, ADecoderAppendsWithinItsPlan) {
  const ModelConfig model = sparse_models()[1];
  const Decoder::Settings settings{.slots = 1, .capacity = 600, .prefill = 256};
  const SessionShape shape{
      .model = model, .batch = 1, .sequence_length = model.context, .dtype = DType::kBF16};
  const std::unique_ptr<Backend> planned = make_plan_backend(cuda().backend().traits());
  Arena plan = Arena::plan(Device::kCuda), arena = Arena::cuda();
  Session on_plan(*planned, plan, shape);
  Decoder(on_plan, settings).start(0, std::vector<int32_t>(600, 1), 0);
  Session session(cuda().backend(), arena, shape);
  session.initialize(7);
  Decoder decoder(session, settings);
  decoder.start(0, std::vector<int32_t>(41, 1), 0);
  for (const int64_t more : {64, 1, 300})
    decoder.append(0, std::vector<int32_t>(static_cast<size_t>(more), 2));
  EXPECT_LE(arena.ledger().peak_bytes(), plan.ledger().peak_bytes());
}

}  // namespace
}  // namespace tessera::testing

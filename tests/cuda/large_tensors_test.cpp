// Tensors of more than 2^31 elements: activations, logits, rows of experts and weights of experts. Their rows
// repeat, so elements beyond 2^31 are compared with the start of the same tensor, and with a small step. A
// test skips if the device has too little memory.
#include "kernels/expert_ops.h"
#include "tests/cuda/twin.h"
#include "tests/model_families.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

constexpr int64_t kBeyond = int64_t{1} << 31;
constexpr int64_t kDifferent = 3, kSequences = 43 * kDifferent, kTokens = 2048;  // 264,192 rows
// Of the sum of the losses of a sequence: sequences differ by 4e-3
constexpr double kOfEqualSequences = 1e-4;

struct LargeTensors : CudaTest {
  // Whether this much of the device's memory is free
  bool has_room(int64_t bytes) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    constexpr int64_t kAllowance = int64_t{1} << 30;  // kernels and libraries
    why_not_ = fmt::format("{} are free, and {} are needed", format_bytes(static_cast<int64_t>(free)),
                           format_bytes(bytes + kAllowance));
    return bytes + kAllowance <= static_cast<int64_t>(free);
  }

  struct Step {
    std::vector<double> losses;  // the sums of the sequences
    double loss;
    std::vector<NamedTensor> gradients;
  };
  // Sequence b has the tokens of sequence b % kDifferent.
  Step step(const RunShape& shape, HostTensors& make) {
    const std::unique_ptr<Backend> be = make_backend(traits());
    Arena arena = make_arena(traits());
    arena.reserve(plan_memory(shape, traits()).peak_bytes());
    TrainState state(*be, arena, shape);
    state.initialize(3);
    const int64_t T = shape.sequence_length;
    std::vector<int32_t> tokens, targets;
    for (int64_t b = 0; b < shape.sequences_per_rank(); ++b) {
      const Philox random(7, static_cast<uint64_t>(b % kDifferent));
      const auto at = [&](int64_t t) {
        return static_cast<int32_t>(random.bits(static_cast<uint64_t>(t))[0] %
                                    static_cast<uint32_t>(shape.model.vocab_size));
      };
      for (int64_t t = 0; t < T; ++t) tokens.push_back(at(t)), targets.push_back(at(t + 1));
    }
    state.step({.tokens = tokens, .targets = targets}, shape.tokens_per_step(), kTestOptimizer, 1e-3, 1);
    Step found{.losses = {}, .loss = state.finish_step().loss, .gradients = {}};
    found.losses = state.sequence_losses();
    found.gradients = on_host(state.stream(), state.grads(), shape.model, make);
    return found;
  }

  // A step of kSequences is that of kDifferent.
  void expect_step_of_few(RunShape shape) {
    shape.micro_batch = kSequences;
    const int64_t bytes = plan_memory(shape, traits()).peak_bytes();
    if (!has_room(bytes)) GTEST_SKIP() << why_not_;
    HostTensors make;
    const Step large = step(shape, make);
    for (size_t b = 0; b < large.losses.size(); ++b) {
      const double first = large.losses[b % static_cast<size_t>(kDifferent)];
      EXPECT_NEAR(large.losses[b], first, kOfEqualSequences * first) << "sequence " << b;
    }
    shape.micro_batch = kDifferent;
    const Step small = step(shape, make);
    EXPECT_NEAR(large.loss, small.loss, tolerance::kBf16ModelLoss * small.loss);
    ASSERT_EQ(large.gradients.size(), small.gradients.size());
    for (size_t i = 0; i < large.gradients.size(); ++i) {
      const Tensor &a = large.gradients[i].tensor, &b = small.gradients[i].tensor;
      double error = 0, size = 0;
      for (int64_t n = 0; n < a.numel(); ++n) {
        const double x = a.as<float>()[n], y = b.as<float>()[n];
        error += (x - y) * (x - y), size += y * y;
      }
      EXPECT_LE(std::sqrt(error), 2 * tolerance::kBf16ModelGradient * std::sqrt(size))
          << large.gradients[i].name;
    }
  }
  static RunShape shape_of(const ModelConfig& model) {
    return {.model = model,
            .micro_batch = kDifferent,
            .micro_steps = 1,
            .sequence_length = kTokens,
            .dtype = DType::kBF16,
            .sample_tokens = kNoSamples};
  }

  // `times` times the rows of `block`, on the device
  Tensor repeated(Arena& arena, const Tensor& block, int64_t times) {
    const Shape& one = block.shape;
    const Shape shape =
        one.rank() == 3 ? Shape{times * one[0], one[1], one[2]} : Shape{times * one[0], one[1]};
    const Tensor whole = arena.alloc(MemoryTag::kData, "repeated", block.dtype, shape);
    for (int64_t i = 0; i < times; ++i)
      cuda().run(Copy{block, whole.rows(i * block.shape[0], block.shape[0])});
    return whole;
  }
  // Whether the last rows of `tensor` have the same bits as its first rows
  void expect_repeats(const Tensor& tensor, int64_t rows, const char* what) {
    const std::vector<char> first = bytes_of(tensor.rows(0, rows)),
                            last = bytes_of(tensor.rows(tensor.shape[0] - rows, rows));
    EXPECT_TRUE(first == last) << what << ": the end of " << tensor.to_string() << " is not its start";
  }

  std::string why_not_;
};

// The residual stream, queries, keys and values, hidden layers and logits, with their gradients
TEST_F(LargeTensors, ActivationsAndLogits) {
  ModelConfig model{.vocab_size = 16384, .context = kTokens, .layers = 1, .heads = 64, .channels = 8192};
  model.mlp_width = 8192;
  ASSERT_GT(kSequences * kTokens * model.channels, kBeyond);
  ASSERT_GT(kSequences * kTokens * model.vocab_size, kBeyond);
  expect_step_of_few(shape_of(model));
}

// Those of a Llama: gated layers, RMSNorm, rotary positions
TEST_F(LargeTensors, ActivationsOfGatedLayers) {
  ModelConfig model{.vocab_size = 1024, .context = kTokens, .layers = 1, .heads = 64, .channels = 8192};
  model.mlp_width = 8192;
  expect_step_of_few(shape_of(with_llama_parts(model)));
}

TEST_F(LargeTensors, RowsOfExperts) {
  ModelConfig model{.vocab_size = 1024, .context = kTokens, .layers = 1, .heads = 16, .channels = 2048};
  model = with_llama_parts(model);
  model.experts = {.count = 8, .active = 4, .width = 2048, .renormalise = true};
  ASSERT_GT(kSequences * kTokens * model.experts.active * model.channels, kBeyond);
  expect_step_of_few(shape_of(model));
}

// If the matrices and rows of experts repeat, so do results and gradients.
TEST_F(LargeTensors, WeightsOfExperts) {
  constexpr int64_t kBlock = 4, kTimes = 33, kExperts = kBlock * kTimes, kRows = 8, C = 4096, O = 4096;
  static_assert(kExperts * C * O > kBeyond);
  if (!has_room(2 * kExperts * C * O * 2 + (int64_t{2} << 30))) GTEST_SKIP() << why_not_;
  Arena arena = Arena::cuda();
  const Twin block = input(DType::kBF16, {kBlock, O, C}, 0.02f), x_block = input(DType::kBF16, {kRows, C}),
             dy_block = input(DType::kBF16, {kRows, O});
  const Tensor weight = repeated(arena, block.cuda, kTimes), x = repeated(arena, x_block.cuda, kExperts),
               dy = repeated(arena, dy_block.cuda, kExperts);
  const Twin offsets = indices({kExperts + 1}, [](int64_t e) { return static_cast<int32_t>(e * kRows); });
  const auto take = [&](const Shape& shape) {
    return arena.alloc(MemoryTag::kData, "result", DType::kBF16, shape);
  };
  const Tensor y = take({kExperts * kRows, O}), dx = take({kExperts * kRows, C}),
               dweight = take({kExperts, O, C});
  cuda().run(ExpertsForward{.x = x, .weight = weight, .y = y, .offsets = offsets.cuda});
  cuda().run(ExpertsBackward{.dy = dy,
                             .x = x,
                             .weight = weight,
                             .dx = dx,
                             .dweight = dweight,
                             .offsets = offsets.cuda,
                             .accumulate = false});
  cuda().synchronize();
  expect_repeats(y, kBlock * kRows, "the products");
  expect_repeats(dx, kBlock * kRows, "the gradient of rows");
  expect_repeats(dweight, kBlock, "the gradient of weights");
  // and the first ones are those of a call that is small
  const Tensor own = take({kBlock * kRows, O});
  cuda().run(ExpertsForward{.x = x.rows(0, kBlock * kRows),
                            .weight = block.cuda,
                            .y = own,
                            .offsets = offsets.cuda.rows(0, kBlock + 1)});
  cuda().synchronize();
  EXPECT_TRUE(bytes_of(own) == bytes_of(y.rows(0, kBlock * kRows)));
}

}  // namespace
}  // namespace tessera::testing

// The whole model on a GPU: against PyTorch, against the CPU, against itself.
#include "tests/gpt2_reference.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

struct CudaModel : ::testing::Test {
  DeviceTraits device;
  void SetUp() override {
    std::string why_not;
    if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  }
};

TEST_F(CudaModel, Fp32AgreesWithPyTorch) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const ReferenceErrors e = compare_with_pytorch(device, DType::kF32, attention, 2);
    fmt::print(
        "[ measured ] fp32 {}: loss {:.1e}, gradients {:.1e} ({}), weights after ten steps {:.1e} ({})\n",
        name_of(attention), e.first_loss, e.gradients, e.worst_gradient, e.weights, e.worst_weight);
    EXPECT_LT(e.first_loss, tolerance::kCudaF32AgainstPyTorch);
    EXPECT_LT(e.gradients, tolerance::kCudaF32AgainstPyTorch) << e.worst_gradient;
    EXPECT_LT(e.losses, tolerance::kCudaF32AgainstPyTorch);
    EXPECT_LT(e.grad_norms, tolerance::kCudaF32AgainstPyTorch);
    EXPECT_LT(e.weights, tolerance::kCudaF32AgainstPyTorch) << e.worst_weight;
  }
}

// Flash has no bf16 kernel for this model's head dim of 16; the next test serves it.
TEST_F(CudaModel, Bf16AgreesWithPyTorchWithinItsPrecision) {
  const ReferenceErrors e = compare_with_pytorch(device, DType::kBF16, AttentionKind::kNaive, 1);
  fmt::print("[ measured ] bf16: loss {:.1e}, gradients {:.1e} ({}), losses {:.1e}, norms {:.1e}\n",
             e.first_loss, e.gradients, e.worst_gradient, e.losses, e.grad_norms);
  EXPECT_LT(e.first_loss, tolerance::kBf16ModelLoss);
  EXPECT_LT(e.gradients, tolerance::kBf16ModelGradient) << e.worst_gradient;
  EXPECT_LT(e.losses, tolerance::kBf16ModelLoss);
  EXPECT_LT(e.grad_norms, tolerance::kBf16ModelGradient);
}

RunShape shape_of(DType dtype, AttentionKind attention, int64_t T) {
  return {.model = {.vocab_size = 301, .context = 300, .layers = 3, .heads = 2, .channels = 128},
          .micro_batch = 3,
          .micro_steps = 2,
          .sequence_length = T,
          .dtype = dtype,
          .attention = attention};
}

struct Steps {
  std::vector<double> losses, norms;
  Params first_gradients;
  std::vector<float> weights;
};

// Ten steps from seed 3 on tokens that depend on the step alone.
Steps run(const DeviceTraits& device, const RunShape& shape, HostTensors& make) {
  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  arena.reserve(plan_memory(shape, device).peak_bytes());
  TrainState state(*be, arena, shape);
  state.initialize(3);
  Steps steps;
  HostTensors data;
  for (int i = 0; i < 10; ++i) {
    const Tensor tokens = data.tokens({shape.tokens_per_step() + 1}, shape.model.vocab_size);
    const std::span<const int32_t> all(tokens.as<int32_t>(), static_cast<size_t>(tokens.numel()));
    state.step(all.first(all.size() - 1), all.last(all.size() - 1),
               {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1}, 1e-3,
               i + 1);
    const TrainState::StepResult r = state.finish_step();
    steps.losses.push_back(r.loss);
    steps.norms.push_back(r.grad_norm);
    if (i > 0) continue;
    steps.first_gradients.blocks.resize(shape.model.layers);
    std::vector<Tensor> gradients;
    for_each_param(state.grads(), shape.model,
                   [&](const ParamInfo&, const Tensor& t) { gradients.push_back(t); });
    size_t at = 0;
    for_each_param(steps.first_gradients, shape.model, [&](const ParamInfo& info, Tensor& t) {
      t = make.poisoned(info.shape);
      be->copy(gradients[at++], t);
    });
  }
  for_each_param(state.optimizer().masters(), shape.model, [&](const ParamInfo& info, const Tensor& t) {
    const Tensor host = data.poisoned(info.shape);
    be->copy(t, host);
    be->synchronize();
    steps.weights.insert(steps.weights.end(), floats(host).begin(), floats(host).end());
  });
  EXPECT_EQ(arena.ledger().peak_bytes() <= plan_memory(shape, device).peak_bytes(), true);
  return steps;
}

TEST_F(CudaModel, AgreesWithTheCpuAtHeadDim64) {
  for (const int64_t T : {63, 129, 300})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
        HostTensors make;
        const Steps cpu = run({}, shape_of(DType::kF32, AttentionKind::kFlash, T), make);
        const Steps gpu = run(device, shape_of(dtype, attention, T), make);
        const bool f32 = dtype == DType::kF32;
        const std::string what = fmt::format("{} {} T {}", name_of(dtype), name_of(attention), T);
        std::vector<Tensor> want;
        std::vector<double> errors;
        for_each_param(cpu.first_gradients, shape_of(dtype, attention, T).model,
                       [&](const ParamInfo&, const Tensor& t) { want.push_back(t); });
        size_t at = 0;
        for_each_param(
            gpu.first_gradients, shape_of(dtype, attention, T).model,
            [&](const ParamInfo& info, const Tensor& t) {
              const double error = relative_error(t, want[at++]);
              errors.push_back(error);
              EXPECT_LT(error, f32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelGradient)
                  << what << " " << info.name;
            });
        fmt::print("[ measured ] {}: first loss {:.1e}, worst gradient {:.1e}, tenth loss {:.1e}\n", what,
                   std::abs(gpu.losses[0] / cpu.losses[0] - 1),
                   *std::max_element(errors.begin(), errors.end()),
                   std::abs(gpu.losses[9] / cpu.losses[9] - 1));
        for (int i = 0; i < 10; ++i)
          EXPECT_NEAR(gpu.losses[i] / cpu.losses[i], 1,
                      f32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelLoss)
              << what << " step " << i;
      }
}

TEST_F(CudaModel, SameSeedSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
      HostTensors make;
      const Steps a = run(device, shape_of(dtype, attention, 300), make),
                  b = run(device, shape_of(dtype, attention, 300), make);
      EXPECT_EQ(a.losses, b.losses);
      EXPECT_EQ(a.norms, b.norms);
      EXPECT_EQ(std::memcmp(a.weights.data(), b.weights.data(), a.weights.size() * sizeof(float)), 0);
    }
}

TEST_F(CudaModel, ThePlanIsTheStep) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const RunShape shape = shape_of(DType::kBF16, attention, 257);
    const MemoryLedger plan = plan_memory(shape, device);
    const std::unique_ptr<Backend> be = make_backend(device);
    Arena arena = make_arena(device);
    arena.reserve(plan.peak_bytes());
    const int64_t reserved = arena.reserved_bytes();
    TrainState state(*be, arena, shape);
    state.initialize(5);
    const std::vector<int32_t> tokens(static_cast<size_t>(shape.tokens_per_step()), 1), prompt(300, 1);
    state.step(tokens, tokens,
               {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0, .max_grad_norm = 0}, 1e-3,
               1);
    state.finish_step();
    state.evaluate(tokens, tokens, 3);
    state.next_token_logits(prompt);
    EXPECT_EQ(arena.ledger().peak_bytes(), plan.peak_bytes());
    EXPECT_EQ(arena.ledger().at_peak(), plan.at_peak());
    EXPECT_EQ(arena.reserved_bytes(), reserved) << "the step reached the driver";
  }
}

TEST_F(CudaModel, OutOfMemoryNamesTheTags) {
  Arena arena = Arena::cuda();
  arena.alloc(MemoryTag::kWeights, "w", DType::kF32, {1 << 20});
  try {
    arena.alloc(MemoryTag::kActivations, "scores", DType::kBF16, {int64_t{1} << 40});
    FAIL() << "2 TiB were granted";
  } catch (const OutOfMemory& error) {
    const std::string what = error.what();
    for (const char* part : {"out of GPU memory", "scores", "weights 4.0 MiB"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace tessera::testing

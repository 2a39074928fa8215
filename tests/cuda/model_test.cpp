// The whole model on a GPU: against PyTorch, against the CPU, against itself.
#include "kernels/attention/cudnn.h"
#include "tests/reference_folder.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"

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

// Naive attention; the next test has the other kinds.
TEST_F(CudaModel, Bf16AgreesWithPyTorchWithinItsPrecision) {
  const ReferenceErrors e = compare_with_pytorch(device, DType::kBF16, AttentionKind::kNaive, 1);
  fmt::print("[ measured ] bf16: loss {:.1e}, gradients {:.1e} ({}), losses {:.1e}, norms {:.1e}\n",
             e.first_loss, e.gradients, e.worst_gradient, e.losses, e.grad_norms);
  EXPECT_LT(e.first_loss, tolerance::kBf16ModelLoss);
  EXPECT_LT(e.gradients, tolerance::kBf16ModelGradient) << e.worst_gradient;
  EXPECT_LT(e.losses, tolerance::kBf16ModelLoss);
  EXPECT_LT(e.grad_norms, tolerance::kBf16ModelGradient);
}

// What serves head dim 64 in this dtype, here
std::vector<AttentionKind> kinds_for(DType dtype) {
  std::vector<AttentionKind> kinds{AttentionKind::kNaive, AttentionKind::kFlash};
  std::string why_not;
  if (dtype == DType::kBF16) {
    if (attention::cudnn_available(why_not)) {
      kinds.push_back(AttentionKind::kCudnn);
    } else {
      fmt::print("[ skipped  ] cudnn attention: {}\n", why_not);
    }
  }
  return kinds;
}

RunShape shape_of(DType dtype, AttentionKind attention, int64_t T) {
  return {.model = {.vocab_size = 301, .context = 300, .layers = 3, .heads = 2, .channels = 128},
          .micro_batch = 3,
          .micro_steps = 2,
          .sequence_length = T,
          .dtype = dtype,
          .attention = attention};
}

TEST_F(CudaModel, AgreesWithTheCpuAtHeadDim64) {
  for (const int64_t T : {63, 129, 300}) {
    HostTensors make;
    const StepsResult cpu = run_steps({}, shape_of(DType::kF32, AttentionKind::kFlash, T), 10, make);
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const AttentionKind attention : kinds_for(dtype)) {
        const StepsResult gpu = run_steps(device, shape_of(dtype, attention, T), 10, make);
        const bool f32 = dtype == DType::kF32;
        const std::string what = fmt::format("{} {} T {}", name_of(dtype), name_of(attention), T);
        double worst = 0;
        for (size_t i = 0; i < gpu.first_gradients.size(); ++i) {
          const double error = relative_error(gpu.first_gradients[i].tensor, cpu.first_gradients[i].tensor);
          EXPECT_LT(error, f32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelGradient)
              << what << " " << gpu.first_gradients[i].name;
          worst = std::max(worst, error);
        }
        for (int i = 0; i < 10; ++i)
          EXPECT_NEAR(gpu.losses[i] / cpu.losses[i], 1,
                      f32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelLoss)
              << what << " step " << i;
        fmt::print("[ measured ] {}: first loss {:.1e}, worst gradient {:.1e}, tenth loss {:.1e}\n", what,
                   std::abs(gpu.losses[0] / cpu.losses[0] - 1), worst,
                   std::abs(gpu.losses[9] / cpu.losses[9] - 1));
      }
  }
}

TEST_F(CudaModel, SameSeedSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const AttentionKind attention : kinds_for(dtype)) {
      HostTensors make;
      const RunShape shape = shape_of(dtype, attention, 300);
      expect_same_bits(run_steps(device, shape, 10, make), run_steps(device, shape, 10, make));
    }
}

TEST_F(CudaModel, RecomputingChangesNoBit) {
  for (const AttentionKind attention : kinds_for(DType::kBF16)) {
    HostTensors make;
    RunShape shape = shape_of(DType::kBF16, attention, 300);
    const StepsResult kept = run_steps(device, shape, 3, make);
    for (const Keep keep : {kKeepAllButMlp, kKeepOutputs}) {
      shape.keep = keep;
      expect_same_bits(run_steps(device, shape, 3, make), kept);
    }
  }
}

TEST_F(CudaModel, LogitsInChunksChangeNothingButRounding) {
  HostTensors make;
  RunShape shape = shape_of(DType::kF32, AttentionKind::kFlash, 300);
  const StepsResult whole = run_steps(device, shape, 2, make);
  shape.classifier_chunk = 77;
  const StepsResult chunked = run_steps(device, shape, 2, make);
  EXPECT_NEAR(chunked.losses[0], whole.losses[0], 1e-6);
  EXPECT_NEAR(chunked.grad_norms[0] / whole.grad_norms[0], 1, 1e-5);
  EXPECT_NEAR(chunked.losses[1], whole.losses[1], 1e-4);
}

TEST_F(CudaModel, ThePlanIsTheStep) {
  for (const AttentionKind attention : kinds_for(DType::kBF16)) {
    for (const Keep keep : {kKeepAll, kKeepAllButMlp, kKeepOutputs}) {
      RunShape shape = shape_of(DType::kBF16, attention, 257);
      shape.keep = keep;
      shape.classifier_chunk = keep == kKeepAll ? 0 : 100;
      shape.rule = adamw(keep == kKeepAllButMlp ? DType::kBF16 : DType::kF32);
      expect_plan_is_the_step(device, shape);
    }
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

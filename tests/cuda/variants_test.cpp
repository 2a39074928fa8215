// The variants of GPT-2 on CUDA: their operations and whole models against the CPU, and against PyTorch.
#include "kernels/attention/cudnn.h"
#include "tests/cuda/twin.h"
#include "tests/model_variants.h"
#include "tests/reference_folder.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

using CudaVariants = CudaTest;

TEST_F(CudaVariants, LinearWithEveryActivation) {
  struct Size {
    int64_t N, C, O;
  };
  for (const DType dtype : kReal)
    for (const Activation activation : kActivations)
      for (const auto& [N, C, O] : {Size{130, 768, 2304}, Size{65, 64, 192}, Size{63, 50, 33}, Size{7, 1, 1}})
        for (const bool with_bias : {true, false}) {
          SCOPED_TRACE(fmt::format("{} {} N {} C {} O {} bias {}", name_of(dtype), name_of(activation), N, C,
                                   O, with_bias));
          const Twin x = input(dtype, {N, C}),
                     weight = input(dtype, {O, C}, 1 / std::sqrt(static_cast<float>(C)));
          const Twin bias = with_bias ? input(dtype, {O}) : Twin{};
          const Twin y = output(dtype, {N, O}), pre = output(dtype, {N, O});
          run_on_both({y, pre}, [&](auto on) {
            return LinearForward{.x = on(x),
                                 .weight = on(weight),
                                 .y = on(y),
                                 .bias = on(bias),
                                 .pre_activation = on(pre),
                                 .activation = activation};
          });
          // Where cuBLASLt does not fuse it, the activation reads a pre-activation that was rounded before,
          // and a square has twice its error.
          expect_same(y, "y", activation == Activation::kGelu ? 1 : activation == Activation::kRelu2 ? 3 : 2);
          expect_same(pre, "pre_activation");

          const Twin dy = input(dtype, {N, O}), u = input(dtype, {N, C}, 2), dx = output(dtype, {N, C});
          const Twin dweight = input(dtype, {O, C});
          run_on_both({dx, dweight}, [&](auto on) {
            return LinearBackward{.dy = on(dy),
                                  .x = on(x),
                                  .weight = on(weight),
                                  .dx = on(dx),
                                  .dweight = on(dweight),
                                  .pre_activation = on(u),
                                  .activation = activation};
          });
          expect_same(dx, "dx");
          expect_same(dweight, "dweight");
        }
}

TEST_F(CudaVariants, LayerNormWithEveryEpsilon) {
  for (const DType dtype : kReal)
    for (const float epsilon : {1e-12f, 1e-5f, 1e-3f, 1.0f}) {
      SCOPED_TRACE(fmt::format("{} epsilon {}", name_of(dtype), epsilon));
      constexpr int64_t N = 65, C = 768;
      const Twin x = input(dtype, {N, C}, 0.1f), weight = input(dtype, {C}), bias = input(dtype, {C});
      const Twin y = output(dtype, {N, C}), mean = output(DType::kF32, {N}), rstd = output(DType::kF32, {N});
      run_on_both({y, mean, rstd}, [&](auto on) {
        return LayerNormForward{.x = on(x),
                                .weight = on(weight),
                                .bias = on(bias),
                                .y = on(y),
                                .mean = on(mean),
                                .rstd = on(rstd),
                                .epsilon = epsilon};
      });
      expect_same(y, "y");
      expect_same(rstd, "rstd");
    }
}

// Of head dim 64, which every attention serves in both precisions.
constexpr ModelConfig kHeadDim64{.vocab_size = 301, .context = 130, .layers = 3, .heads = 2, .channels = 128};

std::vector<Variant> all_variants() {
  std::vector<Variant> all = variants_of(kHeadDim64), parts = parts_of(kHeadDim64);
  all.insert(all.end(), parts.begin(), parts.end());
  return all;
}

RunShape shape_of(const Variant& variant, DType dtype, AttentionKind attention) {
  return {.model = variant.model,
          .micro_batch = 3,
          .micro_steps = 2,
          .sequence_length = 129,
          .dtype = dtype,
          .attention = attention};
}

std::vector<AttentionKind> kinds_for(DType dtype, const ModelConfig& model) {
  std::string why_not;
  if (dtype == DType::kBF16 && cudnn_serves(model) && attention::cudnn_available(why_not))
    return {AttentionKind::kNaive, AttentionKind::kFlash, AttentionKind::kCudnn};
  return {AttentionKind::kNaive, AttentionKind::kFlash};
}

TEST_F(CudaVariants, ModelsAgreeWithTheCpu) {
  std::vector<Variant> all = all_variants(), random = random_variants(16, 8);
  all.insert(all.end(), random.begin(), random.end());
  for (const Variant& variant : all) {
    HostTensors make;
    const StepsResult cpu = run_steps({}, shape_of(variant, DType::kF32, AttentionKind::kFlash), 3, make);
    for (const DType dtype : kReal)
      for (const AttentionKind attention : kinds_for(dtype, variant.model)) {
        const std::string what = fmt::format("{} {} {}", variant.name, name_of(dtype), name_of(attention));
        const StepsResult gpu =
            run_steps(cuda().backend().traits(), shape_of(variant, dtype, attention), 3, make);
        const bool f32 = dtype == DType::kF32;
        const double allowed = f32                               ? tolerance::kCudaF32AgainstPyTorch
                               : variant.model.mlp == Mlp::kRelu ? tolerance::kBf16ReluGradient
                                                                 : tolerance::kBf16ModelGradient;
        double worst = 0;
        for (size_t i = 0; i < gpu.first_gradients.size(); ++i) {
          if (variant.model.experts && !f32) break;  // roundings of what a router reads move some choices
          const double error = relative_error(gpu.first_gradients[i].tensor, cpu.first_gradients[i].tensor);
          EXPECT_LT(error, allowed) << what << " " << gpu.first_gradients[i].name;
          worst = std::max(worst, error);
        }
        for (size_t i = 0; i < gpu.losses.size(); ++i)
          EXPECT_NEAR(gpu.losses[i] / cpu.losses[i], 1,
                      f32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelLoss)
              << what << " step " << i;
        fmt::print("[ measured ] {}: first loss {:.1e}, worst gradient {:.1e}\n", what,
                   std::abs(gpu.losses[0] / cpu.losses[0] - 1), worst);
      }
  }
}

TEST_F(CudaVariants, F32AgreesWithPyTorch) {
  for (const Variant& variant : variants_of(kReferenceVariant)) {
    const std::filesystem::path folder = fixture("gpt2_variants/" + variant.name);
    if (!std::filesystem::exists(folder)) {
      fmt::print("[ skipped  ] {}: make_gpt2_reference.py makes it\n", folder.string());
      continue;
    }
    const ReferenceErrors e =
        compare_with_pytorch(cuda().backend().traits(), DType::kF32, AttentionKind::kNaive, 1, folder);
    EXPECT_LT(e.first_loss, tolerance::kCudaF32AgainstPyTorch) << variant.name;
    EXPECT_LT(e.gradients, tolerance::kCudaF32AgainstPyTorch) << variant.name << " " << e.worst_gradient;
    EXPECT_LT(e.weights, tolerance::kCudaF32AgainstPyTorch) << variant.name << " " << e.worst_weight;
  }
}

// Grouped heads, rotary positions with and without scaling, SwiGLU, biases of q, k and v, QK norm
TEST_F(CudaVariants, FamiliesInF32AgreeWithPyTorch) {
  for (const char* name : kFamilyFixtures) {
    const ReferenceErrors e = compare_with_pytorch(cuda().backend().traits(), DType::kF32,
                                                   AttentionKind::kNaive, 1, fixture("families") / name);
    EXPECT_LT(e.first_loss, tolerance::kCudaF32AgainstPyTorch) << name;
    EXPECT_LT(e.gradients, tolerance::kCudaF32AgainstPyTorch) << name << " " << e.worst_gradient;
    EXPECT_LT(e.losses, tolerance::kCudaF32AgainstPyTorch) << name;
    EXPECT_LT(e.grad_norms, tolerance::kCudaF32AgainstPyTorch) << name;
    fmt::print("[ measured ] {}: loss {:.1e}, gradients {:.1e} ({}), losses of ten steps {:.1e}\n", name,
               e.first_loss, e.gradients, e.worst_gradient, e.losses);
  }
}

TEST_F(CudaVariants, RecomputingChangesNoBitAndThePlanIsTheStep) {
  for (const Variant& variant : all_variants()) {
    SCOPED_TRACE(variant.name);
    HostTensors make;
    RunShape shape = shape_of(variant, DType::kBF16, AttentionKind::kFlash);
    const StepsResult kept = run_steps(cuda().backend().traits(), shape, 2, make);
    expect_plan_is_the_step(cuda().backend().traits(), shape);
    for (const Keep keep :
         {kKeepAllButMlp, kKeepAttention, kKeepOutputs, Keep{Recomputed::kNorms, Recomputed::kActivation},
          Keep{Recomputed::kAttention}}) {
      shape.keep = keep;
      expect_same_bits(run_steps(cuda().backend().traits(), shape, 2, make), kept);
      expect_plan_is_the_step(cuda().backend().traits(), shape);
    }
  }
}

// A width beyond that of GPT-2 needs a larger workspace: its bias gradient has as many columns.
TEST_F(CudaVariants, AnMlpOfAnyWidthFits) {
  for (const int64_t width : {int64_t{8}, int64_t{136}, int64_t{16384}}) {
    Variant wide{"wide", kHeadDim64};
    wide.model.mlp_width = width;
    HostTensors make;
    const StepsResult cpu = run_steps({}, shape_of(wide, DType::kF32, AttentionKind::kFlash), 1, make),
                      gpu = run_steps(cuda().backend().traits(),
                                      shape_of(wide, DType::kF32, AttentionKind::kFlash), 1, make);
    EXPECT_NEAR(gpu.losses[0] / cpu.losses[0], 1, tolerance::kCudaF32AgainstPyTorch) << width;
    EXPECT_NEAR(gpu.grad_norms[0] / cpu.grad_norms[0], 1, tolerance::kCudaF32AgainstPyTorch) << width;
  }
}

}  // namespace
}  // namespace tessera::testing

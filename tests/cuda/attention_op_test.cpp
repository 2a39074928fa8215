// Attention as an operation of the backend, on CUDA against the CPU backend.
#include <algorithm>

#include "kernels/attention/cudnn.h"
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

class CudaAttention : public CudaTest {
 protected:
  void compare(AttentionKind kind, DType dtype, const AttentionShape& s) {
    // Single elements: naive rounds the scores, of a size up to 5, before
    // the exponential multiplies their errors.
    const double slack = kind == AttentionKind::kNaive ? 16 : 4;
    SCOPED_TRACE(fmt::format("{} {} B {} T {} H {} D {} {}", name_of(kind), name_of(dtype), s.batch, s.tokens,
                             s.heads, s.head_dim, s.causal ? "causal" : "full"));
    const bool naive = kind == AttentionKind::kNaive;
    const AttentionPlan on_cpu = choose_attention(
        {.kind = naive ? kind : AttentionKind::kFlash, .shape = s, .dtype = DType::kF32, .device = {}});
    const AttentionPlan on_cuda =
        choose_attention({.kind = kind, .shape = s, .dtype = dtype, .device = cuda().backend().traits()});
    const Shape packed{s.batch, s.tokens, 3, s.heads, s.head_dim},
        heads{s.batch, s.tokens, s.heads, s.head_dim};
    const Twin qkv = input(dtype, packed), y = output(dtype, heads);
    const Twin saved = output(on_cuda.saved_dtype, on_cuda.saved_shape);
    const auto scratch_of = [&](int64_t on_cpu_bytes, int64_t on_cuda_bytes) {
      return Twin{output(DType::kF32, {on_cpu_bytes / 4 + 1}).cpu,
                  output(DType::kF32, {on_cuda_bytes / 4 + 1}).cuda};
    };
    const Twin forward_scratch = scratch_of(on_cpu.forward_workspace_bytes, on_cuda.forward_workspace_bytes);
    run_on_both({y, saved}, [&](auto on) {
      return AttentionForward{.plan = on(on_cpu, on_cuda),
                              .qkv = on(qkv),
                              .y = on(y),
                              .saved = on(saved),
                              .workspace = on(forward_scratch)};
    });
    expect_same(y, "y", slack);
    expect_same_norm(y, "y");
    expect_same(saved, on_cuda.saved_name, kind == AttentionKind::kNaive ? slack : 100 * slack);

    const Twin dy = input(dtype, heads), dqkv = output(dtype, packed);
    const Twin scratch = scratch_of(on_cpu.backward_workspace_bytes, on_cuda.backward_workspace_bytes);
    run_on_both({dqkv}, [&](auto on) {
      return AttentionBackward{.plan = on(on_cpu, on_cuda),
                               .qkv = on(qkv),
                               .y = on(y),
                               .saved = on(saved),
                               .dy = on(dy),
                               .dqkv = on(dqkv),
                               .workspace = on(scratch)};
    });
    if (kind == AttentionKind::kCudnn) {
      expect_near_largest(dqkv, tolerance::attention::kBf16Gradient);
    } else {
      expect_same(dqkv, "dqkv", slack);
    }
    expect_same_norm(dqkv, "dqkv", 2);
  }

  // As the fused kernels' own tests measure: in long causal sequences the first rows' gradients, and the
  // errors of their rounded probabilities, are many times the tensor's root mean square.
  void expect_near_largest(const Twin& twin, double allowed) {
    const std::vector<float> got = floats_of(twin.cuda);
    const float* want = twin.cpu.as<float>();
    double worst = 0, largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double off = std::abs(static_cast<double>(got[i]) - want[i]);
      worst = off <= worst ? worst : off;  // NaN goes in, and stays
      if (std::isnan(worst)) break;
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    }
    EXPECT_LE(worst, allowed * largest) << twin.cuda.to_string();
  }
};

TEST_F(CudaAttention, Naive) {
  for (const DType dtype : kReal) {
    for (const bool causal : {true, false}) {
      for (const int64_t T : {1, 2, 63, 65, 127, 129, 256})
        compare(AttentionKind::kNaive, dtype, {2, T, 3, 64, causal});
      compare(AttentionKind::kNaive, dtype, {3, 40, 1, 20, causal});
      compare(AttentionKind::kNaive, dtype, {1, 1000, 2, 16, causal});
    }
  }
}

TEST_F(CudaAttention, NaiveSurvivesLargeScores) {
  for (const DType dtype : kReal) {
    const AttentionShape s{1, 129, 2, 64, true};
    const AttentionPlan plan = choose_attention(
        {.kind = AttentionKind::kNaive, .shape = s, .dtype = dtype, .device = cuda().backend().traits()});
    const Twin qkv = input(dtype, {1, 129, 3, 2, 64}, 100),
               y = output(dtype, {1, 129, 2, 64});  // scores near 1e4
    const Twin saved = output(dtype, plan.saved_shape);
    cuda().run(AttentionForward{.plan = plan, .qkv = qkv.cuda, .y = y.cuda, .saved = saved.cuda});
    for (const float value : floats_of(y.cuda)) ASSERT_TRUE(std::isfinite(value));
  }
}

// The kernels have tests of their own; this one is for the strides of the packed projections.
TEST_F(CudaAttention, FlashReadsPackedProjections) {
  for (const DType dtype : kReal)
    for (const bool causal : {true, false}) compare(AttentionKind::kFlash, dtype, {2, 129, 3, 64, causal});
}

TEST_F(CudaAttention, CudnnReadsPackedProjections) {
  std::string why_not;
  if (!attention::cudnn_available(why_not)) GTEST_SKIP() << "no cuDNN: " << why_not;
  for (const bool causal : {true, false}) {
    for (const int64_t T : {2, 63, 64, 129, 1000})
      for (const int64_t D : {64, 128}) compare(AttentionKind::kCudnn, DType::kBF16, {2, T, 3, D, causal});
    for (const int64_t D : {8, 16, 48, 80, 120})
      compare(AttentionKind::kCudnn, DType::kBF16, {2, 129, 3, D, causal});
  }
}

}  // namespace
}  // namespace tessera

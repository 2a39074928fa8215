// CPU attention: flash against naive, naive against finite differences and fp64, over tiles and sizes.
#include <cmath>

#include "kernels/attention/cudnn.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/streaming_softmax.h"
#include "tests/attn_mask.h"
#include "tests/kernels/attention_heads.h"
#include "tests/says.h"
#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

AttentionPlan packed_plan_for(AttentionKind kind, AttentionShape shape) {
  return choose_attention({.kind = kind, .shape = shape, .dtype = DType::kF32, .device = {}});
}

struct PackedResult {
  Tensor y, saved, dqkv;
};

struct Attention : AttentionHeads {
  PackedResult run(const AttentionPlan& plan, const Tensor& qkv, const Tensor& dy,
                   const cpu::FlashTile* tile = nullptr) {
    PackedResult r{make.poisoned(dy.shape), make.poisoned(plan.saved_shape), make.poisoned(qkv.shape)};
    const cpu::FlashTile sizes = tile ? *tile : cpu::FlashTile{};
    const int64_t of_tile =
        plan.threads * std::max(cpu::FlashForwardScratch(nullptr, sizes, plan.shape.head_dim).bytes,
                                cpu::FlashBackwardScratch(nullptr, sizes, plan.shape.tokens).bytes);
    const Tensor workspace =
        make.poisoned({std::max({plan.forward_workspace_bytes, plan.backward_workspace_bytes, of_tile}) / 4});
    const PackedHeads in(qkv, plan.shape), out(r.dqkv, plan.shape);
    const Inputs inputs{in.q, in.k, in.v, dy};
    const Result result{r.y, r.saved, out.q, out.k, out.v};
    const AttentionForward to_y = forward(plan, inputs, result, workspace);
    const AttentionBackward to_dqkv = backward(plan, inputs, result, workspace);
    tile ? cpu::flash_attention_forward(to_y, *tile) : cpu.run(to_y);
    tile ? cpu::flash_attention_backward(to_dqkv, *tile) : cpu.run(to_dqkv);
    return r;
  }
};

TEST_F(Attention, FlashEqualsNaive) {
  for (const int64_t T : {1, 2, 63, 65, 127, 129, 1000})
    for (const int64_t B : {1, 3})
      for (const int64_t D : {4, 64})
        for (const bool causal : {true, false}) {
          if (T == 1000 && B == 3) continue;  // the sizes above leave nothing for it to find
          const AttentionShape shape{B, T, 2, D, causal};
          const Tensor qkv = make.normal({B, T, 6, D}), dy = make.normal({B, T, 2, D});
          const PackedResult naive = run(packed_plan_for(AttentionKind::kNaive, shape), qkv, dy);
          const PackedResult flash = run(packed_plan_for(AttentionKind::kFlash, shape), qkv, dy);
          EXPECT_LT(relative_error(flash.y, naive.y), tolerance::kCpuAttention)
              << T << " " << B << " " << D << " " << causal;
          EXPECT_LT(relative_error(flash.dqkv, naive.dqkv), tolerance::kCpuAttention)
              << T << " " << B << " " << D << " " << causal;
        }
}

TEST_F(Attention, FlashDoesNotDependOnTheTile) {
  const AttentionShape shape{2, 77, 2, 16, true};
  const Tensor qkv = make.normal({2, 77, 6, 16}), dy = make.normal({2, 77, 2, 16});
  const AttentionPlan plan = packed_plan_for(AttentionKind::kFlash, shape);
  const PackedResult whole = run(plan, qkv, dy);
  for (const int64_t queries : {1, 3, 16, 50, 77, 100})
    for (const int64_t keys : {1, 4, 7, 32, 76, 200}) {
      const cpu::FlashTile tile{queries, keys};
      const PackedResult tiled = run(plan, qkv, dy, &tile);
      EXPECT_LT(relative_error(tiled.y, whole.y), tolerance::kCpuAttention) << queries << " x " << keys;
      EXPECT_LT(relative_error(tiled.saved, whole.saved), tolerance::kCpuAttention)
          << queries << " x " << keys;
      EXPECT_LT(relative_error(tiled.dqkv, whole.dqkv), tolerance::kCpuAttention) << queries << " x " << keys;
    }
}

TEST_F(Attention, GradientsMatchFiniteDifferences) {
  for (const AttentionKind kind : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const bool causal : {true, false}) {
      const AttentionShape shape{2, 11, 2, 4, causal};
      const Tensor qkv = make.normal({2, 11, 6, 4}), dy = make.normal({2, 11, 2, 4});
      const AttentionPlan plan = packed_plan_for(kind, shape);
      const PackedResult r = run(plan, qkv, dy);
      const Tensor y = make.poisoned(dy.shape), saved = make.poisoned(plan.saved_shape),
                   scratch = make.poisoned({plan.forward_workspace_bytes / 4});
      expect_gradient(qkv, r.dqkv, [&] {
        const PackedHeads in(qkv, shape);
        cpu.run(forward(plan, {in.q, in.k, in.v}, {.y = y, .saved = saved}, scratch));
        return dot(y, dy);
      });
    }
}

TEST_F(Attention, ScoresOfTenThousandGiveNoNaN) {
  for (const AttentionKind kind : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const AttentionShape shape{1, 65, 1, 16, true};
    const Tensor qkv = make.normal({1, 65, 3, 16}, 100),
                 dy = make.normal({1, 65, 1, 16});  // 100 * 100 * sqrt(16) / 4
    const PackedResult r = run(packed_plan_for(kind, shape), qkv, dy);
    for (const Tensor& t : {r.y, r.dqkv})
      for (const float value : floats(t)) ASSERT_TRUE(std::isfinite(value)) << name_of(kind);
  }
}

TEST_F(Attention, NaNStaysNaN) {
  for (const AttentionKind kind : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const Tensor qkv = make.normal({1, 9, 3, 4}), dy = make.normal({1, 9, 1, 4});
    floats(qkv)[4 * 3 * 4] = std::nanf("");  // query 4
    const PackedResult r = run(packed_plan_for(kind, {1, 9, 1, 4, true}), qkv, dy);
    for (int d = 0; d < 4; ++d) {
      EXPECT_TRUE(std::isnan(floats(r.y)[4 * 4 + d]));
      EXPECT_TRUE(std::isfinite(floats(r.y)[3 * 4 + d]));
    }
  }
}

TEST_F(Attention, ScratchThatIsTooSmallIsRefusedWithTheNumbers) {
  const AttentionPlan plan = choose_attention(
      {.kind = AttentionKind::kFlash, .shape = {1, 3, 2, 4}, .dtype = DType::kF32, .device = {.threads = 2}});
  const Tensor qkv = make.normal({1, 3, 6, 4}), y = make.zeros({1, 3, 2, 4}),
               saved = make.zeros(plan.saved_shape);
  const PackedHeads in(qkv, plan.shape);
  const auto run_with = [&](int64_t bytes) {
    cpu.run(forward(plan, {in.q, in.k, in.v}, {.y = y, .saved = saved}, make.zeros({bytes / 4})));
  };
  // Of each thread: 64 x 64 scores, 64 rows of the output, 64 sums and maxima
  EXPECT_EQ(plan.forward_workspace_bytes, 2 * (64 * 64 * 4 + 64 * 4 * 4 + 64 * 8));
  try {
    run_with(plan.forward_workspace_bytes - 4);
    FAIL() << "too small a workspace was taken";
  } catch (const Error& error) {
    EXPECT_TRUE(
        says(error.what(), {"attention forward: workspace ", fmt::format("{}", plan.forward_workspace_bytes),
                            fmt::format("found {}", plan.forward_workspace_bytes - 4)}));
  }
  run_with(plan.forward_workspace_bytes);
}

// One query over eight keys in two tiles of four, no scaling: small enough to follow by hand.
TEST_F(Attention, WorkedExample) {
  constexpr int64_t N = 8, D = 4;
  const float query[D] = {1, 0, 2, 1};
  const float keys[N][D] = {{1, 1, 0, 0}, {0, 1, 1, 0}, {1, 0, 1, 1}, {0, 0, 1, 0},
                            {2, 1, 1, 1}, {0, 1, 0, 1}, {1, 1, 1, 0}, {0, 0, 0, 1}};
  const float values[N][D] = {{2, 1, 0, 3}, {1, 0, 1, 2}, {0, 2, 1, 1}, {3, 1, 0, 0},
                              {1, 3, 2, 0}, {0, 1, 0, 2}, {2, 0, 1, 1}, {1, 0, 0, 3}};
  double scores[N], sum = 0, exact[D] = {};
  for (int j = 0; j < N; ++j) {
    scores[j] = 0;
    for (int d = 0; d < D; ++d) scores[j] += static_cast<double>(query[d]) * keys[j][d];
    sum += std::exp(scores[j]);
  }
  for (int j = 0; j < N; ++j)
    for (int d = 0; d < D; ++d) exact[d] += std::exp(scores[j]) / sum * values[j][d];

  cpu::StreamingSoftmax row;
  float tile[4];
  std::copy(scores, scores + 4, tile);
  row.absorb(tile, 4);
  EXPECT_EQ(row.maximum, 4);
  std::copy(scores + 4, scores + 8, tile);
  EXPECT_NEAR(row.absorb(tile, 4), std::exp(4.0 - 5.0), 1e-7);
  EXPECT_EQ(row.maximum, 5);
  EXPECT_NEAR(row.log_sum_exp(), std::log(sum), 1e-6);

  // The kernel computes all rows: every row gets the same query, and sees every key.
  AttentionPlan plan = packed_plan_for(AttentionKind::kFlash, {1, N, 1, D, false});
  plan.scale = 1;
  const Tensor qkv = make.empty({1, N, 3, D}), dy = make.zeros({1, N, 1, D});
  for (int j = 0; j < N; ++j)
    for (int d = 0; d < D; ++d) {
      floats(qkv)[(j * 3 + 0) * D + d] = query[d];
      floats(qkv)[(j * 3 + 1) * D + d] = keys[j][d];
      floats(qkv)[(j * 3 + 2) * D + d] = values[j][d];
    }
  for (const int64_t tile_size : {4, 1, 3, 8}) {
    const cpu::FlashTile tile_shape{tile_size, tile_size};
    const PackedResult r = run(plan, qkv, dy, &tile_shape);
    for (int i = 0; i < N; ++i)
      for (int d = 0; d < D; ++d) EXPECT_NEAR(floats(r.y)[i * D + d], exact[d], 1e-6);
    EXPECT_NEAR(floats(r.saved)[0], std::log(sum), 1e-6);
  }
}

TEST(ChooseAttention, SaysWhichSizesItServes) {
  const DeviceTraits h200{.device = Device::kCuda, .arch = 90, .name = "NVIDIA H200"};
  try {
    choose_attention({.kind = AttentionKind::kFlash,
                      .shape = {1, 8, 1, 100, true},
                      .dtype = DType::kBF16,
                      .device = h200});
    FAIL() << "head dim 100 was taken";
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {"head dim 100", "8 up to 256 in bf16"}));
  }
}

TEST(ChooseAttention, CudnnOfOlderVersionsStoresAllScoresToBeDeterministic) {
  using attention::cudnn_sums, attention::CudnnSums;
  EXPECT_EQ(cudnn_sums(90, true, 92500), CudnnSums::kFixedOrder);
  EXPECT_EQ(cudnn_sums(90, true, 92499), CudnnSums::kAtOnce);
  EXPECT_EQ(cudnn_sums(90, true, 0), CudnnSums::kAtOnce) << "no library";
  for (const int arch : {80, 89, 100, 120}) EXPECT_EQ(cudnn_sums(arch, true, 92800), CudnnSums::kAtOnce);
  for (const int version : {91900, 92800}) EXPECT_EQ(cudnn_sums(90, false, version), CudnnSums::kAnyOrder);
  const auto growth = [](CudnnSums sums) {
    const auto bytes = [&](int64_t tokens) {
      return static_cast<double>(attention::cudnn_backward_workspace(
          {sizeof(AttnProblem), ATTN_BF16, 2, tokens, tokens, 3, 3, 64, test::attn_mask(1), 0.125f, {}},
          sums));
    };
    return bytes(1 << 15) / bytes(1 << 14);
  };
  EXPECT_NEAR(growth(CudnnSums::kAnyOrder), 2, 0.1);
  EXPECT_NEAR(growth(CudnnSums::kFixedOrder), 2, 0.1);
  EXPECT_NEAR(growth(CudnnSums::kAtOnce), 4, 0.1);
  EXPECT_EQ(attention::cudnn_sums_note(90, false), "");
  EXPECT_EQ(attention::cudnn_sums_note(80, true), "");
  EXPECT_NE(attention::cudnn_sums_note(90, true).find("9.25"), std::string::npos);
}

TEST(ChooseAttention, CudnnSaysWhatItServes) {
  const DeviceTraits h200{.device = Device::kCuda, .arch = 90, .name = "NVIDIA H200"};
  const auto refusal = [](const AttentionRequest& request) -> std::string {
    try {
      choose_attention(request);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto expect_words = [&](const AttentionRequest& request, const char* words) {
    EXPECT_NE(refusal(request).find(words), std::string::npos) << refusal(request);
  };
  const AttentionShape shape{2, 128, 3, 64, true};
  const AttentionRequest good{
      .kind = AttentionKind::kCudnn, .shape = shape, .dtype = DType::kBF16, .device = h200};
  AttentionRequest bad = good;
  bad.device = {};
  expect_words(bad, "needs a GPU");
  bad = good;
  bad.dtype = DType::kF32;
  expect_words(bad, "bf16 alone");
  bad = good;
  bad.shape.head_dim = 136;
  expect_words(bad, "at most 128");
  bad = good;
  bad.device.arch = 75;
  expect_words(bad, "compute capability 8.0");
  if (!attention::cudnn_built()) {
    expect_words(good, "tools/install --cudnn");
    GTEST_SKIP() << "the plan: " << attention::kCudnnNotBuilt;
  }
  EXPECT_EQ(choose_attention(good).saved_shape, (Shape{2, 3, 128}));
  const auto scratch = [&](int64_t tokens, bool deterministic) {
    AttentionRequest request = good;
    request.shape.tokens = request.shape.kv_tokens = tokens;
    request.deterministic = deterministic;
    return static_cast<double>(choose_attention(request).backward_workspace_bytes);
  };
  EXPECT_NEAR(scratch(1 << 15, false) / scratch(1 << 14, false), 2, 0.1);
  const bool quadratic = attention::cudnn_sums(h200.arch, true) == attention::CudnnSums::kAtOnce;
  EXPECT_NEAR(scratch(1 << 15, true) / scratch(1 << 14, true), quadratic ? 4 : 2, 0.1);
}

TEST(ChooseAttention, NaiveSavesProbabilitiesAndFlashOneNumberARow) {
  const AttentionShape shape{2, 128, 3, 64, true};
  EXPECT_EQ(packed_plan_for(AttentionKind::kNaive, shape).saved_shape, (Shape{2, 3, 128, 128}));
  EXPECT_EQ(packed_plan_for(AttentionKind::kFlash, shape).saved_shape, (Shape{2, 3, 128}));
}

}  // namespace
}  // namespace tessera::testing

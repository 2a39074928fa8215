// CPU attention whose queries choose blocks of keys: naive and flash against fp64 with odd sizes, ties,
// documents and offsets; gradients; choices that are refused.
#include "tests/kernels/attention_heads.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

AttentionMask choosing(int64_t size, int64_t count, bool documents = false) {
  AttentionMask mask(true, documents);
  mask.choice = {.size = size, .count = count};
  return mask;
}

struct Mixture : AttentionHeads {
  void expect_fp64(const AttentionShape& s, const Inputs& in, const Tensor& sinks = {}) {
    const test::AttentionReference want = reference_of(s, in, {}, 0, sinks);
    for (const AttentionKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{} {} B {} T {} keys {} H {} K {}", name_of(kind), to_string(s.mask), s.batch,
                               s.tokens, s.kv_tokens, s.heads, s.kv_heads));
      const AttentionPlan plan = plan_for(kind, s);
      const Result r = run_apart(plan, in);
      for (const auto& [got, values] : {std::pair{Heads{r.y, 0, s.heads}, &want.out},
                                        {r.dq, &want.dq},
                                        {r.dk, &want.dk},
                                        {r.dv, &want.dv}})
        EXPECT_LT(error_of(values_of(got), *values, 1), tolerance::kCpuAttention);
    }
  }
  void add_documents(const AttentionShape& s, const std::vector<int32_t>& cumulative, Inputs& in) {
    in.tables.documents = make.empty({s.batch, s.tokens, 2}, DType::kI32);
    std::ranges::copy(test::documents_from(cumulative, s.batch, s.tokens), in.tables.documents.as<int32_t>());
  }
};

TEST_F(Mixture, MatchesFp64) {
  for (const int64_t T : {1, 15, 16, 17, 33, 64, 129, 193, 300})
    for (const int64_t size : {1, 16, 32, 64})
      for (const int64_t count : {1, 2, 3, 8}) {
        const AttentionShape s{2, T, 4, 9, choosing(size, count), 2};
        expect_fp64(s, inputs_apart(s));
      }
}

TEST_F(Mixture, WithinDocumentsMatchesFp64) {
  const AttentionShape s{2, 200, 4, 8, choosing(16, 3, true), 2};
  Inputs in = inputs_apart(s);
  add_documents(s, {0, 1, 70, 134, 135, 150, 166, 200, 333, 400}, in);
  expect_fp64(s, in);
}

TEST_F(Mixture, OffsetsMatchFp64) {
  for (const int64_t offset : {1, 15, 16, 100}) {
    AttentionShape s{1, 90, 2, 8, choosing(16, 4), 1, offset + 90};
    s.mask.offset = offset;
    expect_fp64(s, inputs_apart(s));
  }
}

TEST_F(Mixture, OfAllBlocksIsFullAttention) {
  for (const AttentionKind kind : kKinds) {
    const AttentionShape plain{2, 150, 4, 16, true, 2};
    AttentionShape s = plain;
    s.mask = choosing(16, 10);
    const Inputs in = inputs_apart(s);
    expect_same_bits(run_apart(plan_for(kind, plain), in), run_apart(plan_for(kind, s), in));
  }
}

// Keys that are all equal: every block scores the same, and the first ones are chosen.
TEST_F(Mixture, EqualBlocksAreChosenInTheirOrder) {
  const AttentionShape s{1, 100, 1, 8, choosing(16, 3), 1};
  const Inputs in = inputs_apart(s);
  for (int64_t t = 0; t < 100; ++t) std::fill_n(heads_of<float>(in.k).one_head(0, 0).row_begin(t), 8, 0.5f);
  for (const AttentionKind kind : kKinds) {
    const Result r = run_apart(plan_for(kind, s), in);
    // Query 99 sees blocks 0 and 1 and its own keys, 96 to 99, all with the same weight.
    for (int64_t d = 0; d < 8; ++d) {
      double sum = 0;
      for (int64_t t = 0; t < 100; ++t)
        if (t < 32 || t >= 96)
          sum += static_cast<double>(heads_of<float>(in.v).one_head(0, 0).row_begin(t)[d]);
      EXPECT_NEAR(floats(r.y)[static_cast<size_t>(99 * 8 + d)], sum / 36, 1e-6);
    }
  }
}

TEST_F(Mixture, ThreadsDoNotChangeTheBits) {
  const AttentionShape s{2, 131, 6, 16, choosing(16, 3), 3};
  const Inputs in = inputs_apart(s);
  const Result first = run_apart(plan_for(AttentionKind::kFlash, s, 1), in);
  for (const int threads : {1, 2, 8})
    expect_same_bits(first, run_apart(plan_for(AttentionKind::kFlash, s, threads), in));
}

TEST_F(Mixture, GradientsMatchFiniteDifferences) {
  for (const AttentionKind kind : kKinds) {
    const AttentionShape s{1, 53, 2, 4, choosing(16, 2), 1};
    const Inputs in = inputs_apart(s);
    expect_gradients_by_differences(plan_for(kind, s), in);
  }
}

TEST_F(Mixture, OtherProblemsAreRefused) {
  const auto refused = [](const AttentionMask& mask, std::initializer_list<std::string_view> words) {
    const std::string text = message_of([&] { plan_for(AttentionKind::kFlash, {1, 100, 2, 8, mask, 1}); });
    EXPECT_TRUE(says(text, words));
  };
  refused(choosing(24, 2), {"a power of two up to 65536", "found blocks of 24 and 2"});
  refused(choosing(1 << 17, 2), {"found blocks of 131072"});
  refused(choosing(16, 0), {"see 1 to 32", "and 0"});
  refused(choosing(16, 33), {"and 33"});
  AttentionMask mask = choosing(16, 2);
  mask.window = 5;
  refused(mask, {"without a window", "2 chosen blocks of 16"});
  mask = choosing(16, 2);
  mask.causal = false;
  refused(mask, {"a causal mask"});
  const AttentionShape shape{1, 100, 2, 8, choosing(16, 2), 1};
  EXPECT_TRUE(
      says(message_of([&] { plan_for(AttentionKind::kFlash, shape, 1, true); }), {"neither dropout nor"}));

  const auto on_gpu = [&](AttentionKind kind, int arch, const AttentionShape& s, DType dtype = DType::kBF16) {
    return message_of([&] {
      choose_attention({.kind = kind,
                        .shape = s,
                        .dtype = dtype,
                        .device = {.device = Device::kCuda, .arch = arch, .name = "a GPU"}});
    });
  };
  const AttentionShape gpu{1, 256, 4, 64, choosing(64, 2), 2};
  for (const int arch : {80, 86, 90, 120})
    for (const DType dtype : {DType::kBF16, DType::kF32})
      EXPECT_EQ(on_gpu(AttentionKind::kFlash, arch, gpu, dtype), "was not refused");
  EXPECT_TRUE(says(on_gpu(AttentionKind::kCudnn, 90, gpu), {"cudnn attention cannot run", "choose"}));
  EXPECT_TRUE(says(on_gpu(AttentionKind::kFlashFp8, 90, gpu), {"flash_fp8 attention cannot run"}));
  AttentionShape biased = gpu;
  biased.scores.alibi_heads = 4;
  EXPECT_TRUE(says(on_gpu(AttentionKind::kFlash, 90, biased), {"ALiBi"}));
}

}  // namespace
}  // namespace tessera::testing

// CPU attention where several query heads share a head of keys and values (Ainslie et al., "GQA",
// arXiv:2305.13245), and where q, k and v are heads of any tensors: naive and flash against fp64, to the bit
// where the sums are the same ones.
#include <omp.h>

#include "tests/kernels/attention_heads.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct GroupedAttention : AttentionHeads {};

struct HeadCounts {
  int64_t heads, kv_heads;
};
constexpr HeadCounts kCounts[] = {{1, 1}, {2, 1}, {4, 2}, {6, 3}, {32, 8}, {5, 5}};

TEST_F(GroupedAttention, MatchesFp64) {
  for (const auto& [H, K] : kCounts)
    for (const int64_t T : {1, 7, 65, 131})
      for (const int64_t D : {5, 16, 33})
        for (const bool causal : {true, false}) {
          if (H == 32 && T * D > 65 * 16) continue;  // the other counts leave nothing for these sizes to find
          const AttentionShape s{2, T, H, D, causal, K};
          const Inputs in = packed_inputs(s);
          const test::AttentionReference want = reference_of(s, in);
          for (const AttentionKind kind : kKinds) {
            SCOPED_TRACE(fmt::format("{} H {} K {} T {} D {} {}", name_of(kind), H, K, T, D,
                                     causal ? "causal" : "full"));
            const Result r = run(plan_for(kind, s), in);
            EXPECT_LT(error_of(values_of(r.y), want.out), tolerance::kCpuAttention);
            EXPECT_LT(error_of(values_of(r.dv), want.dv), tolerance::kCpuAttention);
            if (T == 1) continue;  // one key: dQ and dK are 0 but for rounding
            EXPECT_LT(error_of(values_of(r.dq), want.dq), tolerance::kCpuAttention);
            EXPECT_LT(error_of(values_of(r.dk), want.dk), tolerance::kCpuAttention);
          }
        }
}

TEST_F(GroupedAttention, TensorsOfTheirOwnGiveTheBitsOfPackedOnes) {
  for (const AttentionKind kind : kKinds)
    for (const auto& [H, K] : kCounts) {
      SCOPED_TRACE(fmt::format("{} H {} K {}", name_of(kind), H, K));
      const AttentionShape s{2, 67, H, 9, true, K};
      const Inputs in = packed_inputs(s);
      const Result packed = run(plan_for(kind, s), in);
      const Result own{make.poisoned(in.dy.shape), make.poisoned(packed.saved.shape), poisoned_heads(s, H),
                       poisoned_heads(s, K), poisoned_heads(s, K)};
      run(plan_for(kind, s), apart(s, in), own);
      expect_same_bits(packed, own);
    }
}

// A head that is shared is a head that is repeated: the same products, and dK, dV summed.
TEST_F(GroupedAttention, EqualsRepeatedKeysAndValues) {
  for (const AttentionKind kind : kKinds)
    for (const auto& [H, K] : kCounts)
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(fmt::format("{} H {} K {} {}", name_of(kind), H, K, causal ? "causal" : "full"));
        const AttentionShape s{1, 70, H, 12, causal, K}, all{1, 70, H, 12, causal};
        const Inputs in = packed_inputs(s);
        const Inputs repeated{in.q, poisoned_heads(s, H), poisoned_heads(s, H), in.dy};
        copy_heads(in.k, repeated.k), copy_heads(in.v, repeated.v);
        const Result grouped = run(plan_for(kind, s), in), wide = run(plan_for(kind, all), repeated);
        EXPECT_EQ(values_of(grouped.y), values_of(wide.y));
        EXPECT_EQ(values_of(grouped.dq), values_of(wide.dq));
        const int64_t each = s.tokens * s.head_dim, group = H / K;
        for (const auto& [sum, parts] : {std::pair{grouped.dk, wide.dk}, {grouped.dv, wide.dv}}) {
          const std::vector<float> terms = values_of(parts);
          std::vector<double> want(static_cast<size_t>(K * each));
          for (int64_t i = 0; i < H * each; ++i)
            want[static_cast<size_t>(i / each / group * each + i % each)] += terms[static_cast<size_t>(i)];
          EXPECT_LT(error_of(values_of(sum), want), tolerance::kCpuAttention);
        }
      }
}

TEST_F(GroupedAttention, ThreadsDoNotChangeTheBits) {
  const AttentionShape s{2, 131, 6, 16, true, 3};
  const Inputs in = packed_inputs(s);
  const int before = omp_get_max_threads();
  for (const AttentionKind kind : kKinds) {
    const Result first = run(plan_for(kind, s, 1), in);
    for (const int threads : {2, 3, 8}) {
      SCOPED_TRACE(fmt::format("{} on {} threads", name_of(kind), threads));
      omp_set_num_threads(threads);  // naive asks OpenMP, flash its plan
      expect_same_bits(first, run(plan_for(kind, s, threads), in));
    }
    omp_set_num_threads(before);
  }
}

TEST_F(GroupedAttention, OtherHeadsOfATensorAreLeftAlone) {
  const AttentionShape s{2, 21, 4, 8, true, 2};
  const Inputs in = packed_inputs(s);
  for (const AttentionKind kind : kKinds) {
    const Tensor wide = make.poisoned({s.batch, s.tokens, 11, s.head_dim});
    const Heads dv{wide, 1, 2}, dq{wide, 4, 4}, dk{wide, 9, 2};
    const Result plain = run(plan_for(kind, s), in);
    const Result r{make.poisoned(in.dy.shape), make.poisoned(plain.saved.shape), dq, dk, dv};
    run(plan_for(kind, s), in, r);
    expect_same_bits(plain, r);
    for (const int64_t head : {0, 3, 8})
      for (const float value : values_of(Heads{wide, head, 1}))
        ASSERT_TRUE(std::isnan(value)) << name_of(kind) << ", head " << head;
  }
}

TEST_F(GroupedAttention, ThePlanTellsTheKernels) {
  const AttentionShape grouped{2, 16, 6, 64, true, 3}, plain{2, 16, 6, 64, true};
  EXPECT_EQ(plain.kv_heads, 6);
  EXPECT_EQ(attn_problem(plan_for(AttentionKind::kFlash, grouped)).kv_heads, 3);
  EXPECT_EQ(attn_problem(plan_for(AttentionKind::kFlash, plain)).kv_heads, 6);
  EXPECT_EQ(plan_for(AttentionKind::kNaive, grouped).saved_shape, (Shape{2, 6, 16, 16}));
  EXPECT_EQ(plan_for(AttentionKind::kFlash, grouped).saved_shape, (Shape{2, 6, 16}));
}

TEST_F(GroupedAttention, RefusesHeadsThatDoNotDivide) {
  for (const int64_t kv_heads : {-1, 0, 4, 7, 12}) {
    const std::string message = message_of([&] {
      plan_for(AttentionKind::kFlash, {1, 8, 6, 16, true, kv_heads});
    });
    EXPECT_TRUE(says(message, {"key/value heads", "6 heads", fmt::format("found {}", kv_heads)}));
  }
}

TEST_F(GroupedAttention, RefusesHeadsThatAreNotThere) {
  const AttentionShape s{1, 8, 4, 16, true, 2};
  const AttentionPlan plan = plan_for(AttentionKind::kNaive, s);
  const Inputs good = packed_inputs(s);
  const Result r = run(plan, good);
  const Tensor workspace = make.poisoned({plan.backward_workspace_bytes / 4});
  const auto expect_words = [&](const AttentionBackward& op, std::initializer_list<std::string_view> words) {
    const std::string message = message_of([&] { cpu.run(op); });
    EXPECT_TRUE(says(message, words));
  };
  Inputs bad = good;
  bad.k.first = 7;
  expect_words(backward(plan, bad, r, workspace),
               {"attention backward: k ", "2 heads of fp32 [1, 8, 8, 16]", "found 2 from head 7"});
  bad = good;
  bad.v.first = -1;
  expect_words(backward(plan, bad, r, workspace), {"v must", "2 heads"});
  bad = good;
  bad.k.count = 4;  // as many as there are query heads
  expect_words(backward(plan, bad, r, workspace), {"k must", "2 heads"});
  bad = good;
  bad.q = poisoned_heads({1, 8, 4, 12}, 4);
  expect_words(backward(plan, bad, r, workspace),
               {"q ", "fp32 [1, 8, heads, 16] on cpu", "found fp32 [1, 8, 4, 12]"});
  bad.q.tensor = make.poisoned({8, 4, 16});
  expect_words(backward(plan, bad, r, workspace), {"q ", "fp32 [1, 8, heads, 16] on cpu"});
  Result shared = r;
  shared.dv.first = shared.dk.first + 1;
  expect_words(backward(plan, good, shared, workspace), {"dk and dv ", "heads of their own"});
}

}  // namespace
}  // namespace tessera::testing

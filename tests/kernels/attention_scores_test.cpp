// CPU attention whose scores have a learned sink or ALiBi, against fp64: naive and flash, over odd sizes,
// grouped heads, windows, offsets and dropout; and what is refused.
#include "kernels/attention/alibi.h"
#include "kernels/attention/cudnn.h"
#include "kernels/attention/family.h"
#include "tests/kernels/attention_heads.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct AttentionScoresTest : AttentionHeads {
  // All of a problem on one plan, with gradients of the sinks added to 1
  struct Scored {
    Result result;
    Tensor dsinks;
  };
  Scored run_scored(const AttentionPlan& plan, const Inputs& in, const Tensor& sinks,
                    const Dropout& dropout) {
    const AttentionShape& s = plan.shape;
    Scored scored{
        .result = {make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), poisoned_heads(s, s.heads),
                   poisoned_heads(s, s.kv_tokens, s.kv_heads), poisoned_heads(s, s.kv_tokens, s.kv_heads)},
        .dsinks = sinks ? make.zeros({s.heads}) : Tensor{}};
    if (sinks) std::ranges::fill(floats(scored.dsinks), 1.0f);
    const Tensor workspace = workspace_of(plan);
    AttentionForward to_y = forward(plan, in, scored.result, workspace, dropout);
    to_y.sinks = sinks;
    cpu.run(to_y);
    AttentionBackward to_gradients = backward(plan, in, scored.result, workspace, dropout);
    to_gradients.sinks = sinks, to_gradients.dsinks = scored.dsinks;
    cpu.run(to_gradients);
    return scored;
  }
  void expect_formula(const AttentionPlan& plan, const Inputs& in, const Dropout& dropout = {}) {
    const AttentionShape& s = plan.shape;
    const Tensor sinks = s.scores.sinks ? make.normal({s.heads}, 2) : Tensor{};
    const test::AttentionReference want = reference_of(s, in, dropout, plan.first_head, sinks);
    const Scored got = run_scored(plan, in, sinks, dropout);
    EXPECT_LT(error_of(values_of(got.result.y), want.out), tolerance::kCpuAttention);
    if (s.kv_tokens > 1 || sinks) {  // of one key alone dQ and dK are 0 but for rounding
      EXPECT_LT(error_of(values_of(got.result.dq), want.dq), tolerance::kCpuAttention);
      EXPECT_LT(error_of(values_of(got.result.dk), want.dk), tolerance::kCpuAttention);
    }
    EXPECT_LT(error_of(values_of(got.result.dv), want.dv), tolerance::kCpuAttention);
    if (plan.kind == AttentionKind::kFlash) {
      EXPECT_LT(error_of({floats(got.result.saved).begin(), floats(got.result.saved).end()}, want.lse),
                tolerance::kCpuAttention);
    }
    if (!sinks) return;
    // Added to 1. Terms of both signs add up to less than they round.
    const double size = std::fmax(std::ranges::max(want.dsinks), std::ranges::max(want.dsinks_terms));
    for (int64_t h = 0; h < s.heads; ++h)
      EXPECT_NEAR(floats(got.dsinks)[h], want.dsinks[h] + 1, tolerance::kCpuAttention * std::fmax(size, 1));
  }
};

TEST_F(AttentionScoresTest, MatchFp64) {
  struct Heads {
    int64_t heads, kv_heads;
  };
  for (const AttentionScores scores : {AttentionScores{.sinks = true},
                                       {.alibi_heads = 6},
                                       {.sinks = true, .alibi_heads = 9},
                                       {.cap = 1.5f},
                                       {.sinks = true, .cap = 0.3f}})
    for (const auto& [H, K] : {Heads{1, 1}, {3, 3}, {6, 2}})
      for (const int64_t T : {1, 7, 65, 131})
        for (const AttentionMask& mask : {AttentionMask(true), AttentionMask(false), [] {
                                            AttentionMask window(true);
                                            window.window = 5;
                                            return window;
                                          }()})
          for (const AttentionKind kind : kKinds) {
            AttentionShape s{2, T, H, 16, mask, K};
            s.scores = scores;
            SCOPED_TRACE(fmt::format("{} sinks {} alibi {} cap {} heads {} of {} T {} {}", name_of(kind),
                                     scores.sinks, scores.alibi_heads, scores.cap, H, K, T, to_string(mask)));
            AttentionPlan plan = plan_for(kind, s);
            if (scores.alibi_heads > 0) plan.first_head = scores.alibi_heads - H;  // some heads of all
            expect_formula(plan, packed_inputs(s));
          }
}

TEST_F(AttentionScoresTest, MatchFp64WithDropout) {
  for (const AttentionKind kind : kKinds) {
    AttentionShape s{2, 67, 4, 8, true, 2};
    for (const AttentionScores scores :
         {AttentionScores{.sinks = true, .alibi_heads = 4}, {.sinks = true, .cap = 0.5f}}) {
      s.scores = scores;
      SCOPED_TRACE(fmt::format("{} cap {}", name_of(kind), scores.cap));
      expect_formula(plan_for(kind, s, 3, /*dropout=*/true), packed_inputs(s),
                     {.threshold = 64, .key = 7, .place = 65536, .first_sequence = 3});
    }
  }
}

// Queries before all keys see none: the sink has all of their probability.
TEST_F(AttentionScoresTest, RowsWithoutKeysHaveTheSinkAlone) {
  for (const AttentionKind kind : kKinds) {
    AttentionMask mask(true);
    mask.offset = -5;
    AttentionShape s{1, 9, 2, 8, mask};
    s.kv_tokens = 4;
    s.scores.sinks = true;
    const AttentionPlan plan = plan_for(kind, s);
    const Inputs in = inputs_apart(s);
    const Tensor sinks = make.normal({2});
    const Scored got = run_scored(plan, in, sinks, {});
    expect_formula(plan, in);
    for (int64_t t = 0; t < 5; ++t)
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(floats(got.result.y)[(t * 2 + h) * 8 + d], 0);
        if (kind == AttentionKind::kFlash) {
          EXPECT_EQ(floats(got.result.saved)[h * 9 + t], floats(sinks)[h]) << "query " << t;
        }
      }
  }
}

// Press et al.: 2^-1 to 2^-8 for 8 heads, and for 12 also 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5
TEST(Alibi, HasThePublishedSlopes) {
  const attention::Alibi eight{.heads = 8}, twelve{.heads = 12}, part{.heads = 12, .first_head = 7};
  for (int h = 0; h < 8; ++h) {
    EXPECT_FLOAT_EQ(eight.slope(h), std::exp2(-static_cast<float>(h + 1)));
    EXPECT_FLOAT_EQ(twelve.slope(h), eight.slope(h));
  }
  for (int h = 8; h < 12; ++h) EXPECT_FLOAT_EQ(twelve.slope(h), std::exp2(-0.5f - static_cast<float>(h - 8)));
  EXPECT_EQ(part.slope(2), twelve.slope(9));
  EXPECT_FLOAT_EQ(attention::Alibi{.heads = 1}.slope(0), std::exp2(-8.0f));
  EXPECT_FLOAT_EQ(attention::Alibi{.heads = 16}.slope(0), std::exp2(-0.5f));
}

TEST(Alibi, KnowsTheTokensOfARing) {
  EXPECT_EQ(attention::token_of_row(3, 5, 8), 3);
  for (int last = 8; last < 30; ++last)
    for (int token = last - 7; token <= last; ++token)
      EXPECT_EQ(attention::token_of_row(token % 8, last, 8), token);
}

TEST_F(AttentionScoresTest, CudnnServesThemNot) {
  AttentionShape s{1, 128, 2, 64, true};
  s.scores.sinks = true;
  AttentionPlan plan{.kind = AttentionKind::kCudnn, .shape = s, .dtype = DType::kBF16, .saved_shape = {}};
  EXPECT_TRUE(says(attention::cudnn_refusal(attn_problem(plan), 90), {"sinks"}));
  plan.shape.scores = {.alibi_heads = 2};
  EXPECT_TRUE(says(attention::cudnn_refusal(attn_problem(plan), 90), {"bias"}));
  plan.shape.scores = {.cap = 50};
  EXPECT_TRUE(says(attention::cudnn_refusal(attn_problem(plan), 90), {"cap", "model.attention_cap=0"}));
}

TEST_F(AttentionScoresTest, GpusServeAlibiAtEveryHeadDim) {
  for (const int head_dim : {16, 64, 80, 128, 136, 256})
    for (const bool drops : {false, true})
      for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32}) {
        AttentionShape s{1, 128, 2, head_dim, true};
        s.scores.alibi_heads = 2;
        AttentionPlan plan{.kind = AttentionKind::kFlash, .shape = s, .saved_shape = {}};
        AttnProblem p = attn_problem(plan, {.threshold = drops});
        p.dtype = dtype;
        for (const int arch : {80, 90, 120}) EXPECT_EQ(attn_supports(&p, arch), ATTN_OK) << head_dim;
        p.alibi_heads = 1;  // fewer than the problem has
        EXPECT_EQ(attn_supports(&p, 90), ATTN_BAD_ALIBI);
      }
}

// Hopper has kernels of its own, without dropout.
TEST_F(AttentionScoresTest, GpusServeACapAtEveryHeadDim) {
  for (const int head_dim : {16, 64, 80, 128, 136, 256})
    for (const bool drops : {false, true})
      for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32}) {
        AttentionShape s{1, 128, 2, head_dim, true};
        s.scores.cap = 50;
        AttentionPlan plan{.kind = AttentionKind::kFlash, .shape = s, .saved_shape = {}};
        AttnProblem p = attn_problem(plan, {.threshold = drops});
        p.dtype = dtype;
        for (const int arch : {80, 90, 120}) EXPECT_EQ(attn_supports(&p, arch), ATTN_OK) << head_dim;
        EXPECT_EQ(attention::supports(attention::sm90::kFamily, p, 90) == ATTN_OK,
                  dtype == ATTN_BF16 && !drops)
            << head_dim;
        p.score_cap = -1;
        EXPECT_EQ(attn_supports(&p, 90), ATTN_BAD_CAP);
      }
}

TEST_F(AttentionScoresTest, RefusesSinksThatAreNotPlanned) {
  const AttentionShape s{1, 8, 2, 8, true};
  const AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
  const Inputs in = packed_inputs(s);
  EXPECT_TRUE(says(message_of([&] { run_scored(plan, in, make.normal({2}), {}); }), {"sinks", "plan"}));
  AttentionPlan with = plan;
  with.shape.scores.sinks = true;
  EXPECT_TRUE(says(message_of([&] { run_scored(with, in, {}, {}); }), {"sinks"}));
  EXPECT_TRUE(says(message_of([&] { run_scored(with, in, make.normal({3}), {}); }), {"sinks", "[3]"}));
}

}  // namespace
}  // namespace tessera::testing

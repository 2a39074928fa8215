// attention.h with learned sinks, ALiBi and capped scores, of every family that the device runs, against
// fp64: odd sizes, heads that share keys, all masks, dropout; gradients of the sinks; what is refused.
#include "kernels/attention/alibi.h"
#include "tests/cuda/attention_problem.h"

namespace tessera::test {
namespace {

struct Scores {
  bool sinks, alibi;
  double cap = 0;
};
constexpr Scores kScores[] = {{true, false},     {false, true},      {true, true},      {false, false, 1.5},
                              {false, false, 4}, {true, false, 0.4}, {false, false, 50}};

std::string text_of(const AttentionCase& c, int arch) {
  std::ostringstream text;
  text << "arch " << arch << ", " << c.batch << " x " << c.tokens << " queries, " << c.kv_tokens << " keys, "
       << c.heads << " heads of " << c.head_dim << ", " << c.kv_heads << " of keys"
       << (c.mask.causal ? ", causal" : "") << ", window " << c.mask.window << ", offset " << c.mask.offset
       << (c.mask.documents.empty() ? "" : ", documents") << (c.sinks.empty() ? "" : ", sinks")
       << ", ALiBi of " << c.alibi_heads << ", cap " << c.cap << ", threshold " << c.dropout.threshold;
  return text.str();
}

// Documents of these lengths, again and again
std::vector<int32_t> documents_of(const std::vector<int32_t>& lengths, int64_t batch, int64_t tokens) {
  std::vector<int32_t> cumulative = {0};
  for (size_t d = 0; cumulative.back() < batch * tokens; ++d) {
    const int64_t end = int64_t{cumulative.back()} + lengths[d % lengths.size()];
    cumulative.push_back(static_cast<int32_t>(std::min(end, batch * tokens)));
  }
  return documents_from(cumulative, batch, tokens);
}

class AttentionScoreRules : public AttentionKernels,
                            public ::testing::WithParamInterface<std::tuple<bool, int>> {
 protected:
  static bool bf16() { return std::get<0>(GetParam()); }
  static int head_dim() { return std::get<1>(GetParam()); }
  static AttentionCase shape(const Scores& scores, int64_t batch, int64_t tokens, const MaskCase& mask,
                             int64_t kv_heads = 1, int64_t group = 2) {
    AttentionCase c{batch, tokens, kv_heads * group, kv_heads, head_dim(), mask, 1 / std::sqrt(head_dim())};
    if (scores.sinks) c.sinks = random_values(c.heads, 5, 2, bf16());
    c.cap = scores.cap;
    if (scores.alibi) c.alibi_heads = 2 * c.heads + 1, c.first_head = 1;  // some heads of all
    return c;
  }
  static void expect_fp64(const AttentionCase& c, Packing packing = Packing::kSeparate) {
    const Inputs inputs(c, bf16());
    const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
    for (const int arch : archs_here(bf16())) {
      SCOPED_TRACE(text_of(c, arch));
      const Outputs r = Problem(c, bf16(), packing, inputs, arch).run();
      Limits limit = limits(bf16());
      if (bf16() && !c.sinks.empty()) limit.out = tolerance::kBf16OutWithSinks;
      expect_within(errors_of(r, want, cancelled_terms(c, inputs)), limit);
    }
  }
};

TEST_P(AttentionScoreRules, AgreeWithFp64) {
  for (const Scores& scores : kScores)
    for (const int64_t tokens : {1, 2, 63, 65, 129, 203, 321})
      for (const bool causal : {true, false}) {
        expect_fp64(shape(scores, tokens < 100 ? 2 : 1, tokens, causal));
        expect_fp64(shape(scores, 2, tokens, causal, 2, 3), Packing::kPackedQkv);
      }
}

TEST_P(AttentionScoreRules, UnderMasksAgreeWithFp64) {
  const std::vector<int32_t> ragged = {1, 63, 64, 65, 2, 128, 129, 3, 191, 1, 17};
  for (const Scores& scores : kScores) {
    for (const int64_t window : {1, 50, 128}) expect_fp64(shape(scores, 1, 300, {true, window}));
    for (const bool causal : {true, false})
      expect_fp64(shape(scores, 2, 333, {causal, documents_of(ragged, 2, 333)}), Packing::kPackedApart);
    expect_fp64(shape(scores, 2, 333, {true, documents_of(ragged, 2, 333), 20}), Packing::kPackedQkv);
    for (const int64_t offset : {200, 130, -64}) {  // queries before all keys see none, or the sink
      AttentionCase c = shape(scores, 2, 121, {true, 0, offset});
      c.kv_tokens = 321;
      expect_fp64(c);
    }
  }
}

TEST_P(AttentionScoreRules, WithDropoutAgreeWithFp64) {
  for (const Scores& scores : kScores)
    for (const MaskCase& mask : {MaskCase(true), MaskCase(false), MaskCase(true, 70)}) {
      AttentionCase c = shape(scores, 2, 193, mask);
      c.dropout = {.threshold = 51, .key = 77, .place = 5 * Dropout::kHeads, .first_sequence = 3};
      expect_fp64(c);
    }
}

// Sinks far above and far below all scores
TEST_P(AttentionScoreRules, OfExtremeSinksAgreeWithFp64) {
  AttentionCase c = shape({true, false}, 1, 130, true, 2, 1);
  for (const double sink : {30.0, -30.0, 300.0, -1e6}) {
    c.sinks = {sink, 0.5};
    expect_fp64(c);
  }
}

TEST_P(AttentionScoreRules, GiveTheSameBits) {
  for (const Scores& scores : kScores) {
    const AttentionCase c = shape(scores, 2, 1100, true, 5, 2);
    const Inputs inputs(c, bf16());
    for (const int arch : archs_here(bf16())) {
      Problem problem(c, bf16(), Packing::kPackedQkv, inputs, arch);
      const std::vector<uint8_t> bits = problem.run_for_bits();
      for (int repeat = 0; repeat < 5; ++repeat)
        ASSERT_TRUE(problem.run_for_bits() == bits) << text_of(c, arch);
    }
  }
}

std::string name_of_parameter(const ::testing::TestParamInfo<std::tuple<bool, int>>& info) {
  return (std::get<0>(info.param) ? "Bf16" : "F32") + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(AttentionScores, AttentionScoreRules,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(16, 40, 64, 80, 96, 128, 192, 256)),
                         name_of_parameter);

}  // namespace
}  // namespace tessera::test

// attention.h with blocks that queries choose, together with every other mask that is allowed, for every
// kernel family that the device runs, against fp64; and naive attention's choice against the CPU's.
#include <algorithm>

#include "tests/cuda/attention_problem.h"

namespace tessera::test {
namespace {

class MixtureAttention : public AttentionKernels,
                         public ::testing::WithParamInterface<std::tuple<bool, int>> {
 protected:
  static bool bf16() { return std::get<0>(GetParam()); }
  static int head_dim() { return std::get<1>(GetParam()); }

  static AttentionCase shape(int64_t batch, int64_t tokens, const MaskCase& mask, const ChoiceCase& choice,
                             int64_t kv_heads = 2, int64_t group = 2) {
    AttentionCase c{batch, tokens, kv_heads * group, kv_heads, head_dim(), mask, 1 / std::sqrt(head_dim())};
    c.kv_tokens = mask.offset + tokens;
    c.choice = choice;
    return c;
  }
  static std::string text_of(const AttentionCase& c, int arch) {
    std::ostringstream text;
    text << "arch " << arch << ", " << c.batch << " x " << c.tokens << ", " << c.heads << " heads of "
         << c.head_dim << ", " << c.kv_heads << " of keys, offset " << c.mask.offset
         << (c.mask.documents.empty() ? "" : ", documents") << (c.mask.seen_by.empty() ? "" : ", dealt")
         << ", " << c.choice.count << " blocks of " << c.choice.size;
    return text.str();
  }
  static void expect_fp64(const AttentionCase& c, Packing packing = Packing::kSeparate) {
    const Inputs inputs(c, bf16());
    const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
    for (int arch : archs_here(bf16())) {
      SCOPED_TRACE(text_of(c, arch));
      Problem problem(c, bf16(), packing, inputs, arch);
      // Short documents leave a query few keys: see cancelled_terms().
      expect_within(errors_of(problem.run(), want, cancelled_terms(c, inputs)), limits(bf16()));
    }
  }
};

TEST_P(MixtureAttention, AgreesWithFp64) {
  for (int64_t tokens : {1, 16, 17, 65, 128, 129, 300, 500})
    for (const ChoiceCase& choice :
         {ChoiceCase{16, 1}, ChoiceCase{16, 4}, ChoiceCase{64, 2}, ChoiceCase{128, 3}})
      expect_fp64(shape(tokens < 200 ? 2 : 1, tokens, {true}, choice));
}

TEST_P(MixtureAttention, GroupsOfHeadsAgreeWithFp64) {
  for (int64_t group : {1, 3, 8}) {
    expect_fp64(shape(2, 200, {true}, {32, 3}, 1, group), Packing::kPackedQkv);
    expect_fp64(shape(1, 333, {true}, {32, 32}, 2, group));
  }
}

TEST_P(MixtureAttention, DocumentsAgreeWithFp64) {
  const std::vector<int32_t> cumulative = {0, 1, 70, 134, 135, 150, 166, 200, 333, 400, 401, 700, 800};
  expect_fp64(shape(2, 400, {true, documents_from(cumulative, 2, 400)}, {16, 3}));
  expect_fp64(shape(2, 400, {true, documents_from(cumulative, 2, 400)}, {64, 2}));
}

TEST_P(MixtureAttention, OffsetsAgreeWithFp64) {
  for (int64_t offset : {1, 64, 131})
    for (int64_t tokens : {1, 130}) expect_fp64(shape(1, tokens, {true, 0, offset}, {16, 4}, 1, 3));
}

// Every third token of a sequence as queries, and a row that sees nothing
TEST_P(MixtureAttention, DealtQueriesAgreeWithFp64) {
  AttentionCase c = shape(1, 101, {false}, {16, 3});
  c.kv_tokens = 300;
  for (int32_t i = 0; i < 101; ++i) {
    const int32_t token = 3 * i;
    c.mask.documents.insert(c.mask.documents.end(), {i < 100 ? 0 : 298, i < 100 ? token + 1 : 298});
    c.mask.query_tokens.push_back(token);
  }
  for (int32_t key = 0; key < 300; ++key)
    c.mask.seen_by.insert(c.mask.seen_by.end(), {std::min((key + 2) / 3, 100), 100});
  expect_fp64(c);
}

TEST_P(MixtureAttention, SinksAgreeWithFp64) {
  AttentionCase c = shape(2, 300, {true}, {32, 3});
  c.sinks = {0.5, -1, 2, 0};
  expect_fp64(c);
}

TEST_P(MixtureAttention, CapsAgreeWithFp64) {
  AttentionCase c = shape(2, 300, {true}, {32, 3});
  c.cap = 2;
  expect_fp64(c);
}

// Several chunks of queries, and parts of the rows of a block in several tiles
TEST_P(MixtureAttention, ManyRowsAgreeWithFp32) {
  if (!bf16()) return;
  const AttentionCase c = shape(2, 4100, {true}, {128, 4}, 2, 2);
  const Inputs inputs(c, true);
  const Outputs fp32 = Problem(c, false, Packing::kSeparate, inputs, device_arch()).run();
  const AttentionReference want = {fp32.out, {fp32.lse.begin(), fp32.lse.end()}, fp32.dq, fp32.dk, fp32.dv};
  for (int arch : archs_here(true)) {
    SCOPED_TRACE(text_of(c, arch));
    expect_within(errors_of(Problem(c, true, Packing::kPackedQkv, inputs, arch).run(), want,
                            cancelled_terms(c, inputs)),
                  limits(true));
  }
}

TEST_P(MixtureAttention, GivesTheSameBits) {
  const AttentionCase c = shape(2, 1500, {true}, {64, 4}, 2, 2);
  const Inputs inputs(c, bf16());
  for (int arch : archs_here(bf16())) {
    Problem problem(c, bf16(), Packing::kPackedQkv, inputs, arch);
    const std::vector<uint8_t> bits = problem.run_for_bits();
    for (int repeat = 0; repeat < 5; ++repeat)
      ASSERT_TRUE(problem.run_for_bits() == bits) << text_of(c, arch);
  }
}

std::string name_of_parameter(const ::testing::TestParamInfo<std::tuple<bool, int>>& info) {
  return (std::get<0>(info.param) ? "Bf16" : "F32") + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(MixtureBf16, MixtureAttention,
                         ::testing::Combine(::testing::Values(true), ::testing::Values(40, 64, 128, 256)),
                         name_of_parameter);
INSTANTIATE_TEST_SUITE_P(MixtureF32, MixtureAttention,
                         ::testing::Combine(::testing::Values(false), ::testing::Values(16, 64, 256)),
                         name_of_parameter);

}  // namespace
}  // namespace tessera::test

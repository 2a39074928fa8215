// attention.h with sparse blocks: lists by chance, with rows that see nothing, one block and all, beside
// every other mask, of every family that the device runs, against fp64.
#include <algorithm>

#include "tests/cuda/attention_problem.h"
#include "tests/dealt_mask.h"

namespace tessera::test {
namespace {

// Each document `length` tokens long, through all sequences
std::vector<int32_t> documents_every(int32_t length, int64_t batch, int64_t tokens) {
  std::vector<int32_t> cumulative = {0};
  while (cumulative.back() < batch * tokens)
    cumulative.push_back(static_cast<int32_t>(std::min<int64_t>(cumulative.back() + length, batch * tokens)));
  return documents_from(cumulative, batch, tokens);
}

class SparseAttention : public AttentionKernels, public ::testing::WithParamInterface<std::tuple<bool, int>> {
 protected:
  static bool bf16() { return std::get<0>(GetParam()); }
  static int head_dim() { return std::get<1>(GetParam()); }
  static bool whole() { return head_dim() == 64 || head_dim() == 128; }  // heads that fill their tiles

  static AttentionCase shape(int64_t batch, int64_t tokens, const MaskCase& mask, const RandomBlocks& blocks,
                             int64_t kv_heads = 2, int64_t group = 2) {
    AttentionCase c{batch, tokens, kv_heads * group, kv_heads, head_dim(), mask, 1 / std::sqrt(head_dim())};
    c.kv_tokens = mask.offset + tokens;
    c.blocks = random_blocks(blocks, c.kv_tokens, c.kv_tokens);
    return c;
  }
  // What a rank of a context has of sequences of `keys` tokens: whole blocks of queries, padding behind them
  struct Rank {
    int64_t rank, ranks;
  };
  static AttentionCase dealt(int64_t batch, int64_t keys, const std::vector<int32_t>& documents,
                             const Rank& of, const RandomBlocks& blocks, int64_t kv_heads = 2,
                             int64_t group = 2) {
    const DealtShape deal{.ranks = of.ranks,
                          .rank = of.rank,
                          .batch = batch,
                          .all_tokens = keys,
                          .seen = {{.sparse = {.window = 1, .block = blocks.size}}}};
    AttentionCase c{batch,
                    deal.tokens(),
                    kv_heads * group,
                    kv_heads,
                    head_dim(),
                    dealt_mask(deal, documents),
                    1 / std::sqrt(head_dim())};
    c.kv_tokens = keys;
    c.blocks = random_blocks(blocks, c.tokens, keys);
    return c;
  }
  static std::vector<int> archs() { return archs_here(bf16()); }
  static std::string text_of(const AttentionCase& c, int arch) {
    std::ostringstream text;
    text << "arch " << arch << ", " << c.batch << " x " << c.tokens << ", " << c.heads << " heads of "
         << c.head_dim << ", " << c.kv_heads << " of keys" << (c.mask.causal ? ", causal" : "") << ", window "
         << c.mask.window << ", offset " << c.mask.offset << (c.mask.documents.empty() ? "" : ", documents")
         << (c.mask.seen_by.empty() ? "" : ", dealt") << ", blocks of " << c.blocks.size << ", "
         << c.blocks.lists << " lists";
    return text.str();
  }
  // A query without keys: out = 0, LSE = -inf, dQ = 0. A key without queries: dK = dV = 0. To the bit.
  static void expect_nothing_where_nothing_is_seen(const AttentionCase& c, const Outputs& r) {
    int64_t wrong = 0;
    const auto not_zero = [&](const std::vector<double>& x, int64_t row) {
      return std::count_if(x.begin() + row * c.head_dim, x.begin() + (row + 1) * c.head_dim,
                           [](double value) { return value != 0; });
    };
    std::vector<char> key_seen(c.batch * c.kv_heads * c.kv_tokens);
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t t = 0; t < c.tokens; ++t) {
          bool any = false;
          for (int64_t key = 0; key < c.kv_tokens; ++key)
            if (c.sees(b, h, t, key)) {
              any = true;
              key_seen[(b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.kv_tokens + key] = 1;
            }
          if (any) continue;
          const int64_t row = (b * c.heads + h) * c.tokens + t;
          wrong += not_zero(r.out, row) + not_zero(r.dq, row);
          if (c.sinks.empty()) wrong += r.lse[row] != -INFINITY;  // else it is the sink
        }
    for (int64_t row = 0; row < std::ssize(key_seen); ++row)
      if (!key_seen[row]) wrong += not_zero(r.dk, row) + not_zero(r.dv, row);
    EXPECT_EQ(wrong, 0) << "elements of rows that see nothing, or that nothing sees";
  }
  static void expect_fp64(const AttentionCase& c, Packing packing = Packing::kSeparate) {
    const Inputs inputs(c, bf16());
    const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
    for (int arch : archs()) {
      SCOPED_TRACE(text_of(c, arch));
      Problem problem(c, bf16(), packing, inputs, arch);
      const Outputs r = problem.run();
      // Documents and windows may leave a query few keys: see cancelled_terms().
      expect_within(errors_of(r, want, cancelled_terms(c, inputs)), limits(bf16()));
      expect_nothing_where_nothing_is_seen(c, r);
    }
  }
};

TEST_P(SparseAttention, AgreesWithFp64) {
  uint32_t seed = 100 * static_cast<uint32_t>(head_dim());
  for (int64_t tokens : {1, 64, 65, 127, 128, 129, 257, 500})
    for (bool causal : {true, false})
      for (int64_t lists : {1, 2}) {
        if (!whole() && tokens % 2 == 0) continue;
        expect_fp64(
            shape(tokens < 200 ? 2 : 1, tokens, {causal}, {.size = 128, .lists = lists, .seed = ++seed}));
      }
}

// Of two to eight tiles of every kernel
TEST_P(SparseAttention, LargerBlocksAgreeWithFp64) {
  if (!whole()) return;
  for (int64_t size : {256, 512})
    for (bool causal : {true, false})
      expect_fp64(
          shape(1, 1300, {causal}, {.size = size, .lists = 2, .seed = static_cast<uint32_t>(size)}, 2, 1),
          Packing::kPackedQkv);
}

TEST_P(SparseAttention, WindowsAndDocumentsBesideAgreeWithFp64) {
  expect_fp64(shape(1, 600, {true, 200}, {.size = 128, .seed = 1}, 2, 1));
  expect_fp64(shape(1, 600, {true, 64}, {.size = 128, .lists = 2, .seed = 2}, 2, 1));
  for (int32_t length : {1, 77, 128, 300})
    for (bool causal : {true, false})
      expect_fp64(shape(2, 400, {causal, documents_every(length, 2, 400)}, {.size = 128, .seed = 3}, 1, 2));
  expect_fp64(shape(2, 400, {true, documents_every(300, 2, 400), 150}, {.size = 128, .seed = 4}, 1, 2));
}

// A chunk of queries behind keys that are there already
TEST_P(SparseAttention, OffsetsAgreeWithFp64) {
  for (int64_t offset : {128, 384})
    for (int64_t tokens : {1, 130, 300})
      expect_fp64(shape(1, tokens, {true, 0, offset}, {.size = 128, .seed = 5}, 1, 3));
}

// The rows of a key block that all see, in groups, and more tiles than CTAs
TEST_P(SparseAttention, ManyTilesAgreeWithFp32) {
  if (!bf16() || !whole()) return;
  const AttentionCase c = shape(4, 1500, {true}, {.size = 128, .lists = 4, .seed = 6}, 4, 2);
  const Inputs inputs(c, true);
  const Outputs fp32 = Problem(c, false, Packing::kSeparate, inputs, device_arch()).run();
  const AttentionReference want = {fp32.out, {fp32.lse.begin(), fp32.lse.end()}, fp32.dq, fp32.dk, fp32.dv};
  for (int arch : archs()) {
    SCOPED_TRACE(text_of(c, arch));
    expect_within(errors_of(Problem(c, true, Packing::kPackedQkv, inputs, arch).run(), want,
                            cancelled_terms(c, inputs)),
                  limits(true));
  }
}

// Key blocks that thousands of queries see, which Hopper's backward cuts into parts, beside others. List 1
// has more of them than parts.
TEST_P(SparseAttention, KeyBlocksThatMostSeeAgreeWithFp32) {
  if (!bf16() || !whole()) return;
  constexpr int64_t kTokens = 8300, kSize = 128;
  for (bool documents : {false, true})
    for (bool causal : {true, false})
      for (int64_t group : {1, 3}) {
        if (!causal && group > 1) continue;
        MaskCase mask{causal};
        if (documents) mask.documents = documents_every(5000, 1, kTokens);
        AttentionCase c = shape(1, kTokens, mask, {.size = kSize, .lists = 2}, 2, group);
        c.blocks.shown.assign(c.blocks.shown.size(), 0);
        for (int64_t list = 0; list < 2; ++list)
          for (int64_t row = 0; row < c.blocks.query_blocks; ++row)
            for (int64_t column = 0; column < c.blocks.key_blocks; ++column) {
              const bool global = list == 0 ? column < 2 : column % 9 == 0, near = std::abs(row - column) < 3;
              c.blocks.shown[(list * c.blocks.query_blocks + row) * c.blocks.key_blocks + column] =
                  near || (global && row % 11 != 5);
            }
        const Inputs inputs(c, true);
        const Outputs fp32 = Problem(c, false, Packing::kSeparate, inputs, device_arch()).run();
        const AttentionReference want = {
            fp32.out, {fp32.lse.begin(), fp32.lse.end()}, fp32.dq, fp32.dk, fp32.dv};
        for (int arch : archs()) {
          SCOPED_TRACE(text_of(c, arch));
          Problem problem(c, true, Packing::kSeparate, inputs, arch);
          expect_within(errors_of(problem.run(), want, cancelled_terms(c, inputs)), limits(true));
          const std::vector<uint8_t> bits = problem.run_for_bits();
          for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(problem.run_for_bits() == bits);
        }
      }
}

TEST_P(SparseAttention, GivesTheSameBits) {
  const AttentionCase c = shape(2, 900, {true}, {.size = 128, .lists = 2, .seed = 7}, 4, 2);
  const Inputs inputs(c, bf16());
  for (int arch : archs()) {
    Problem problem(c, bf16(), Packing::kPackedQkv, inputs, arch);
    const std::vector<uint8_t> bits = problem.run_for_bits();
    for (int repeat = 0; repeat < 5; ++repeat)
      ASSERT_TRUE(problem.run_for_bits() == bits) << text_of(c, arch);
  }
}

// Lists of a rank's own query blocks. Of 200 tokens three ranks have a whole block, a piece of one, and none.
TEST_P(SparseAttention, DealtQueriesAgreeWithFp64) {
  uint32_t seed = 20;
  for (int64_t keys : {200, 640, 901})
    for (int64_t rank = 0; rank < 3; ++rank) {
      if (!whole() && keys == 640) continue;
      for (int64_t lists : {1, 2})
        expect_fp64(
            dealt(keys < 300 ? 2 : 1, keys, {}, {rank, 3}, {.size = 128, .lists = lists, .seed = ++seed}));
      for (int32_t length : {77, 128, 300})
        expect_fp64(
            dealt(2, keys, documents_every(length, 2, keys), {rank, 3}, {.size = 128, .seed = ++seed}, 1));
    }
}

TEST_P(SparseAttention, ManyTilesOfDealtQueriesAgreeWithFp32) {
  if (!bf16() || !whole()) return;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const AttentionCase c =
        dealt(4, 2900, documents_every(1100, 4, 2900), {rank, 2}, {.size = 128, .lists = 4, .seed = 6}, 4);
    const Inputs inputs(c, true);
    const Outputs fp32 = Problem(c, false, Packing::kSeparate, inputs, device_arch()).run();
    const AttentionReference want = {fp32.out, {fp32.lse.begin(), fp32.lse.end()}, fp32.dq, fp32.dk, fp32.dv};
    for (int arch : archs()) {
      SCOPED_TRACE(text_of(c, arch));
      Problem problem(c, true, Packing::kSeparate, inputs, arch);
      expect_within(errors_of(problem.run(), want, cancelled_terms(c, inputs)), limits(true));
      EXPECT_TRUE(problem.run_for_bits() == problem.run_for_bits());
    }
  }
}

TEST_P(SparseAttention, SinksAgreeWithFp64) {
  AttentionCase c = shape(2, 300, {true}, {.size = 128, .lists = 2, .seed = 8});
  c.sinks = {0.5, -1, 2, 0};
  expect_fp64(c);
}

// NaN in the keys and values of blocks that no list has shows nowhere.
TEST_P(SparseAttention, BlocksThatAreNotListedAreNotRead) {
  if (!whole()) return;
  AttentionCase c = shape(1, 512, {false}, {.size = 128, .seed = 9}, 2, 2);
  c.blocks.shown = {1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1};  // never key blocks 1 and 2
  Inputs inputs(c, bf16());
  for (auto* x : {&inputs.k, &inputs.v})
    for (int64_t head = 0; head < c.kv_heads; ++head)
      std::fill_n(x->begin() + (head * 512 + 128) * c.head_dim, 256 * c.head_dim, NAN);
  const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
  for (int arch : archs()) {
    SCOPED_TRACE(text_of(c, arch));
    expect_within(errors_of(Problem(c, bf16(), Packing::kSeparate, inputs, arch).run(), want),
                  limits(bf16()));
  }
}

std::string name_of_parameter(const ::testing::TestParamInfo<std::tuple<bool, int>>& info) {
  return (std::get<0>(info.param) ? "Bf16" : "F32") + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(SparseAttentionBf16, SparseAttention,
                         ::testing::Combine(::testing::Values(true),
                                            ::testing::Values(40, 64, 96, 128, 192, 256)),
                         name_of_parameter);
INSTANTIATE_TEST_SUITE_P(SparseAttentionF32, SparseAttention,
                         ::testing::Combine(::testing::Values(false), ::testing::Values(16, 64, 128, 256)),
                         name_of_parameter);

}  // namespace
}  // namespace tessera::test

// CPU attention with sparse blocks: naive and flash against fp64 over odd sizes, what is skipped, gradients,
// lists that do not fit.
#include "tests/kernels/attention_heads.h"
#include "tests/random_blocks.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct SparseBlocks : AttentionHeads {
  Tensor numbers_tensor(const BlockLists& lists) {
    const Tensor t = make.empty({lists.shape().numbers()}, DType::kI32);
    std::ranges::copy(lists.numbers(), t.as<int32_t>());
    return t;
  }
  // Inputs of `s`, of which the mask gets the sparse blocks
  Inputs inputs_for(AttentionShape& s, const test::BlockCase& blocks) {
    const BlockLists lists = test::lists_of(blocks, s.mask.offset + s.tokens, s.kv_tokens);
    s.mask.blocks = lists.shape();
    Inputs in = inputs_apart(s);
    in.tables.blocks = numbers_tensor(lists);
    in.blocks = blocks;
    return in;
  }
  Inputs inputs_for(AttentionShape& s, const test::RandomBlocks& blocks) {
    return inputs_for(s, test::random_blocks(blocks, s.mask.offset + s.tokens, s.kv_tokens));
  }
  void add_documents(const AttentionShape& s, const std::vector<int32_t>& cumulative, Inputs& in) {
    in.tables.documents = make.empty({s.batch, s.tokens, 2}, DType::kI32);
    std::ranges::copy(test::documents_from(cumulative, s.batch, s.tokens), in.tables.documents.as<int32_t>());
  }
  void expect_fp64(const AttentionShape& s, const Inputs& in, const Dropout& dropout = {}) {
    const test::AttentionReference want = reference_of(s, in, dropout);
    for (const AttentionKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{} {} B {} T {} keys {} H {} K {} lists {} dropout {}", name_of(kind),
                               to_string(s.mask), s.batch, s.tokens, s.kv_tokens, s.heads, s.kv_heads,
                               s.mask.blocks.lists, dropout.threshold));
      const Result r = run_apart(plan_for(kind, s, 3, static_cast<bool>(dropout)), in, dropout);
      for (const auto& [got, values] : {std::pair{Heads{r.y, 0, s.heads}, &want.out},
                                        {r.dq, &want.dq},
                                        {r.dk, &want.dk},
                                        {r.dv, &want.dv}})
        EXPECT_LT(error_of(values_of(got), *values, 1), tolerance::kCpuAttention);
      if (kind == AttentionKind::kFlash) expect_log_sum_exp(r.saved, want.lse);
    }
  }
  static void expect_log_sum_exp(const Tensor& got, const std::vector<double>& want) {
    for (size_t i = 0; i < want.size(); ++i)
      if (std::isinf(want[i]))
        ASSERT_EQ(floats(got)[i], want[i]) << i;
      else
        ASSERT_NEAR(floats(got)[i], want[i], tolerance::kCpuAttention * std::max(1.0, std::abs(want[i])))
            << i;
  }
};

AttentionMask causal_mask(int64_t window = 0, int64_t offset = 0) {
  AttentionMask mask(true);
  mask.window = window, mask.offset = offset;
  return mask;
}

TEST_F(SparseBlocks, MatchFp64) {
  uint32_t seed = 0;
  for (const int64_t T : {1, 17, 63, 64, 65, 129, 193, 300})
    for (const int64_t size : {16, 48, 64, 128})
      for (const int64_t lists : {1, 2})
        for (const AttentionMask& mask : {causal_mask(), AttentionMask(false), causal_mask(50)}) {
          AttentionShape s{2, T, 4, 9, mask, 2};
          const Inputs in = inputs_for(s, {.size = size, .lists = lists, .seed = ++seed});
          expect_fp64(s, in);
        }
}

TEST_F(SparseBlocks, WithinDocumentsMatchFp64) {
  for (const bool causal : {true, false}) {
    AttentionShape s{2, 200, 4, 8, AttentionMask(causal, true), 2};
    Inputs in = inputs_for(s, {.size = 32, .lists = 2, .seed = 5});
    add_documents(s, {0, 1, 70, 134, 135, 200, 333, 400}, in);
    expect_fp64(s, in);
  }
}

TEST_F(SparseBlocks, OffsetsAndDropoutMatchFp64) {
  const Dropout dropout{
      .threshold = 51, .key = 0x0123456789abcdef, .place = 7 * Dropout::kHeads, .first_sequence = 1000};
  for (const int64_t offset : {0, 1, 64, 100}) {
    AttentionShape s{1, 90, 2, 8, causal_mask(0, offset), 1, offset + 90};
    const Inputs in = inputs_for(s, {.size = 32, .seed = 3});
    expect_fp64(s, in);
    expect_fp64(s, in, dropout);
  }
}

// NaN in blocks that no query of others sees must not show there.
TEST_F(SparseBlocks, TilesThatAreNotListedAreNotRead) {
  AttentionShape s{1, 256, 2, 8, AttentionMask(false), 1};
  // Query blocks 2 and 3 see key blocks 1 and 3, the others block 0 only.
  const test::BlockCase blocks{.size = 64,
                               .query_blocks = 4,
                               .key_blocks = 4,
                               .shown = {1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1}};
  const Inputs in = inputs_for(s, blocks);
  const auto each = [&](const Heads& heads, int64_t from, int64_t to, const auto& visit) {
    for (int64_t h = 0; h < heads.count; ++h)
      for (int64_t t = from; t < to; ++t)
        for (int d = 0; d < 8; ++d) visit(heads_of<float>(heads).one_head(0, h).row_begin(t)[d]);
  };
  for (const Heads& heads : {in.k, in.v}) each(heads, 0, 64, [](float& x) { x = std::nanf(""); });
  const Result r = run_apart(plan_for(AttentionKind::kFlash, s), in);
  const auto nans = [&](const Heads& heads, int64_t from, int64_t to) {
    int64_t count = 0;
    each(heads, from, to, [&](float x) { count += std::isnan(x); });
    return count;
  };
  EXPECT_GT(nans({r.y, 0, 2}, 0, 128), 0);
  EXPECT_EQ(nans({r.y, 0, 2}, 128, 256), 0);
  EXPECT_EQ(nans(r.dq, 128, 256), 0);
  for (const Heads& heads : {r.dk, r.dv}) EXPECT_EQ(nans(heads, 64, 256), 0);
  each(r.dk, 128, 192, [](float x) { ASSERT_EQ(x, 0); });  // no query sees key block 2
}

TEST_F(SparseBlocks, ThatShowAllKeepTheBits) {
  for (const AttentionKind kind : kKinds) {
    const AttentionShape plain{2, 150, 4, 16, true, 2};
    AttentionShape s = plain;
    const test::BlockCase all{
        .size = 64, .query_blocks = 3, .key_blocks = 3, .shown = std::vector<uint8_t>(9, 1)};
    const Inputs in = inputs_for(s, all);
    Inputs without = in;
    without.tables = {};
    expect_same_bits(run_apart(plan_for(kind, plain), without), run_apart(plan_for(kind, s), in));
  }
}

TEST_F(SparseBlocks, ThreadsDoNotChangeTheBits) {
  AttentionShape s{2, 131, 6, 16, causal_mask(), 3};
  const Inputs in = inputs_for(s, {.size = 32, .lists = 3, .seed = 2});
  const Result first = run_apart(plan_for(AttentionKind::kFlash, s, 1), in);
  for (const int threads : {1, 2, 8})
    expect_same_bits(first, run_apart(plan_for(AttentionKind::kFlash, s, threads), in));
}

TEST_F(SparseBlocks, GradientsMatchFiniteDifferences) {
  for (const AttentionMask& mask : {causal_mask(), AttentionMask(false)})
    for (const AttentionKind kind : kKinds) {
      AttentionShape s{2, 11, 2, 4, mask, 1};
      const Inputs in = inputs_for(s, {.size = 3, .seed = 4});
      expect_gradients_by_differences(plan_for(kind, s), in);
    }
}

TEST_F(SparseBlocks, PairsAreCounted) {
  for (const int64_t T : {1, 31, 32, 33, 100}) {
    const test::BlockCase c = test::random_blocks({.size = 32, .lists = 2, .seed = 9}, T, T);
    double pairs = 0, causal = 0;
    for (int64_t list = 0; list < 2; ++list) {
      for (const uint8_t shown : c.shown) pairs += list == 0 ? shown : 0;
      for (int64_t i = 0; i < T; ++i)
        for (int64_t j = 0; j <= i; ++j) causal += c.shows(list, i / 32, j / 32) ? 0.5 : 0;
    }
    const BlockShape shape = test::lists_of(c, T, T).shape();
    EXPECT_EQ(static_cast<double>(shape.pairs), pairs);
    EXPECT_DOUBLE_EQ(shape.causal_pairs, causal);
  }
}

TEST_F(SparseBlocks, ListsThatDoNotFitAreRefused) {
  AttentionShape s{1, 100, 2, 8, causal_mask(), 1};
  Inputs in = inputs_for(s, {.size = 32, .seed = 1});
  const AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
  const Result r{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), {}, {}, {}};
  const Tensor workspace = workspace_of(plan);
  const auto message = [&] { return message_of([&] { cpu.run(forward(plan, in, r, workspace)); }); };
  const Tensor good = in.tables.blocks;
  in.tables.blocks = {};
  EXPECT_TRUE(says(message(), {"blocks ", "int32 [", "on cpu"}));
  in.tables.blocks = make.empty(good.shape, DType::kI32);
  std::ranges::copy(std::span(good.as<int32_t>(), good.numel()), in.tables.blocks.as<int32_t>());
  int32_t* keys = in.tables.blocks.as<int32_t>() + 2 * (4 + 1);
  const int32_t before = keys[0];
  keys[0] = 4;
  EXPECT_TRUE(says(message(), {"key blocks", "below 4", "found 4"}));
  keys[0] = -1;
  EXPECT_TRUE(says(message(), {"key blocks", "found -1"}));
  keys[0] = before;
  const int64_t pairs = s.mask.blocks.pairs;
  keys[2 * pairs] += 1;  // the first place
  EXPECT_TRUE(says(message(), {"the same by query block and by key block"}));

  const auto refused = [](AttentionShape shape, std::initializer_list<std::string_view> words) {
    const std::string text = message_of([&] { plan_for(AttentionKind::kFlash, shape); });
    EXPECT_TRUE(says(text, words));
  };
  AttentionShape other = s;
  other.tokens = other.kv_tokens = 129;
  refused(other, {"lists of sparse blocks", "found 4 of queries", "129 queries"});
  other = s;
  other.mask.blocks.lists = 2;
  refused(other, {"divide the key/value heads", "2 lists", "1 heads"});

  const auto on_gpu = [&](AttentionKind kind, int arch, AttentionShape shape) {
    return message_of([&] {
      choose_attention({.kind = kind,
                        .shape = shape,
                        .dtype = DType::kBF16,
                        .device = {.device = Device::kCuda, .arch = arch, .name = "a GPU"}});
    });
  };
  AttentionShape gpu{1, 256, 2, 64, causal_mask(), 1};
  inputs_for(gpu, {.size = 128, .seed = 1});
  EXPECT_TRUE(says(on_gpu(AttentionKind::kCudnn, 90, gpu), {"sparse blocks", "model.attention=flash"}));
  for (const int arch : {80, 86, 90, 120})
    EXPECT_EQ(on_gpu(AttentionKind::kFlash, arch, gpu), "was not refused");
  AttentionShape small = gpu;
  inputs_for(small, {.size = 64, .seed = 1});
  EXPECT_TRUE(says(on_gpu(AttentionKind::kFlash, 90, small), {"power of two from 128 on"}));
  gpu.scores.cap = 30;
  EXPECT_TRUE(says(on_gpu(AttentionKind::kFlash, 90, gpu), {"a cap of scores"}));
}

}  // namespace
}  // namespace tessera::testing

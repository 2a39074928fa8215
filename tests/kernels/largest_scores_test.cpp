// The largest score of each head on the CPU against fp64, and what becomes of the weights of heads that have
// one that is too large.
#include "tests/largest_scores.h"

#include "kernels/score_ops.h"
#include "tests/kernels/attention_heads.h"
#include "tests/random_blocks.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

TEST(OrderedFloats, WordsHaveTheOrderOfTheirNumbers) {
  const std::vector<float> rising = {-INFINITY, -3e38f, -2,         -1e-40f, 0,       1e-40f,
                                     1e-30f,    1,      1.0000001f, 3e38f,   INFINITY};
  for (size_t i = 0; i < rising.size(); ++i) {
    EXPECT_EQ(float_of_ordered(ordered_word(rising[i])), rising[i]);
    EXPECT_GT(ordered_word(rising[i]), i == 0 ? 0 : ordered_word(rising[i - 1]));
  }
  EXPECT_EQ(float_of_ordered(0), -INFINITY) << "none yet";
}

struct LargestOfHeads : AttentionHeads {
  Tensor none(int64_t heads) {
    const Tensor words = make.empty({heads}, DType::kI32);
    std::memset(words.data, 0, words.bytes());
    return words;
  }
  static std::vector<float> scores(const Tensor& words) {
    std::vector<float> all;
    for (int64_t i = 0; i < words.numel(); ++i) all.push_back(float_of_ordered(words.as<uint32_t>()[i]));
    return all;
  }
  void find(const AttentionPlan& plan, const Inputs& in, const Tensor& largest) {
    cpu.run(LargestScores{.plan = plan, .q = in.q, .k = in.k, .tables = in.tables, .largest = largest});
  }
  void expect_fp64(const AttentionShape& s, const Inputs& in, const test::MaskCase& mask,
                   int64_t first_head = 0) {
    SCOPED_TRACE(fmt::format("{} B {} T {} keys {} H {} K {} D {}", to_string(s.mask), s.batch, s.tokens,
                             s.kv_tokens, s.heads, s.kv_heads, s.head_dim));
    AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
    plan.scale = 0.7f, plan.first_head = first_head;
    const Tensor found = none(s.heads);
    find(plan, in, found);
    const test::AttentionCase problem{.batch = s.batch,
                                      .tokens = s.tokens,
                                      .heads = s.heads,
                                      .kv_heads = s.kv_heads,
                                      .head_dim = static_cast<int>(s.head_dim),
                                      .mask = mask,
                                      .scale = plan.scale,
                                      .kv_tokens = s.kv_tokens,
                                      .alibi_heads = s.scores.alibi_heads,
                                      .first_head = first_head,
                                      .cap = s.scores.cap,
                                      .blocks = in.blocks};
    const std::vector<double> expected =
        test::largest_scores(problem, doubles_of(values_of(in.q)), doubles_of(values_of(in.k)));
    for (size_t h = 0; h < expected.size(); ++h)
      if (std::isinf(expected[h]))
        EXPECT_EQ(scores(found)[h], expected[h]);
      else
        EXPECT_NEAR(scores(found)[h], expected[h],
                    tolerance::kCpuOperation * std::max(1.0, std::abs(expected[h])));
  }
  void expect_fp64(const AttentionShape& s) {
    const Inputs in = inputs_apart(s);
    expect_fp64(s, in, mask_case_of(s.mask, in.tables.documents));
  }
};

TEST_F(LargestOfHeads, OfEveryMaskAreThoseOfFp64) {
  AttentionMask window(true), offset(true), later(true);
  window.window = 7, offset.offset = -3, later.offset = 4;
  for (const AttentionMask& mask : {AttentionMask(false), AttentionMask(true), window, offset, later})
    for (const int64_t D : {9, 64, 80}) {
      expect_fp64({3, 21, 4, D, mask, 2});
      expect_fp64({1, 5, 6, D, mask, 1, 9});
    }
  const AttentionShape packed{2, 21, 2, 8, AttentionMask(true, true), 1};
  Inputs in = inputs_apart(packed);
  in.tables.documents = make.empty({2, 21, 2}, DType::kI32);
  std::ranges::copy(test::documents_from({0, 4, 5, 12, 21, 30, 42}, 2, 21),
                    in.tables.documents.as<int32_t>());
  expect_fp64(packed, in, mask_case_of(packed.mask, in.tables.documents));
}

TEST_F(LargestOfHeads, OfBiasesAndCapsAreThoseOfFp64) {
  for (const AttentionScores& rule : {AttentionScores{.alibi_heads = 6}, AttentionScores{.cap = 1.5f}})
    for (const bool causal : {false, true}) {
      AttentionShape s{2, 33, 3, 24, AttentionMask(causal), 3};
      s.scores = rule;
      const Inputs in = inputs_apart(s);
      expect_fp64(s, in, mask_case_of(s.mask, {}), rule.alibi_heads > 0 ? 3 : 0);
    }
}

TEST_F(LargestOfHeads, OfSparseBlocksAreThoseOfFp64) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    AttentionShape s{1, 300, 4, 16, AttentionMask(seed != 2), 2};
    Inputs in = inputs_apart(s);
    in.blocks = test::random_blocks({.size = 128, .lists = 2, .seed = seed}, s.tokens, s.tokens);
    const BlockLists lists = test::lists_of(in.blocks, s.tokens, s.tokens);
    s.mask.blocks = lists.shape();
    in.tables.blocks = make.empty({std::ssize(lists.numbers())}, DType::kI32);
    std::ranges::copy(lists.numbers(), in.tables.blocks.as<int32_t>());
    expect_fp64(s, in, mask_case_of(s.mask, {}));
  }
}

TEST_F(LargestOfHeads, OfPartsAreThoseOfTheWhole) {
  const AttentionShape s{4, 19, 4, 12, AttentionMask(true), 2}, half{2, 19, 4, 12, AttentionMask(true), 2};
  const Inputs in = inputs_apart(s);
  const Tensor whole = none(4), parts = none(4);
  find(plan_for(AttentionKind::kFlash, s), in, whole);
  const AttentionPlan plan = plan_for(AttentionKind::kFlash, half);
  for (const int64_t part : {1, 0}) {
    const auto of = [&](const Heads& heads) {
      const Shape& all = heads.tensor.shape;
      const Tensor rows = heads.tensor.view({all[0], all[1] * all[2] * all[3]}).rows(2 * part, 2);
      return Heads{rows.view({2, all[1], all[2], all[3]}), 0, heads.count};
    };
    const Inputs own{.q = of(in.q), .k = of(in.k), .v = in.v};
    for (int again = 0; again < 2; ++again) find(plan, own, parts);
  }
  EXPECT_EQ(scores(parts), scores(whole));
}

TEST_F(LargestOfHeads, NoKeyAndNaNCountForNothing) {
  AttentionMask nothing(true);
  nothing.offset = -40;
  const AttentionShape s{1, 16, 2, 8, nothing, 2}, all{1, 16, 2, 8, AttentionMask(true), 2};
  const Inputs in = inputs_apart(s);
  const Tensor found = none(2), with_nan = none(2), without = none(2);
  find(plan_for(AttentionKind::kFlash, s), in, found);
  EXPECT_EQ(scores(found), (std::vector<float>{-INFINITY, -INFINITY}));
  const AttentionPlan plan = plan_for(AttentionKind::kFlash, all);
  find(plan, in, without);
  heads_of<float>(in.q).one_head(0, 1).row_begin(15)[3] = NAN;
  find(plan, in, with_nan);
  EXPECT_EQ(scores(with_nan)[0], scores(without)[0]);
  EXPECT_LE(scores(with_nan)[1], scores(without)[1]);
  EXPECT_GT(scores(with_nan)[1], -INFINITY);
}

// Weights of 4 heads of queries of 2 rows, 2 heads of keys and of values
struct ClippedHeads : ::testing::Test {
  static constexpr int64_t H = 4, K = 2, D = 2, C = 5;
  HostTensors make;
  CpuStream cpu;
  Tensor weights = make.normal({(H + 2 * K) * D, C}), norm = make.zeros({1});

  // Of two ranks and three layers, of which the second is asked for; the largest of the ranks counts.
  Tensor largest(const std::vector<float>& scores) {
    const Tensor words = make.empty({2, 3, H}, DType::kI32);
    for (int64_t i = 0; i < words.numel(); ++i) words.as<uint32_t>()[i] = ordered_word(1e6f);
    for (int64_t h = 0; h < H; ++h) {
      words.as<uint32_t>()[H + h] = ordered_word(h % 2 ? scores[h] : -1.0f);
      words.as<uint32_t>()[3 * H + H + h] = ordered_word(h % 2 ? 0.5f : scores[h]);
    }
    return words;
  }
  ClipHeads clip(const Tensor& param, const std::vector<float>& scores, int64_t columns = C) {
    return {.param = param,
            .low = {},
            .columns = columns,
            .head_dim = D,
            .kv_heads = K,
            .largest = largest(scores),
            .layer = 1,
            .most = 100,
            .grad_norm = norm};
  }
  Tensor copy_of(const Tensor& of) {
    const Tensor copy = make.empty(of.shape);
    std::ranges::copy(floats(of), copy.as<float>());
    return copy;
  }
};

TEST_F(ClippedHeads, ScoresAreMultipliedByWhatBringsTheLargestToTheLimit) {
  const std::vector<float> scores = {400, 99, -5, 100};  // of the second head of keys none is above the limit
  const Tensor after = copy_of(weights);
  cpu.run(clip(after, scores));
  const auto factor = [&](int64_t row) {
    const double found = floats(after)[row * C] / floats(weights)[row * C];
    for (int64_t c = 0; c < C; ++c)
      EXPECT_NEAR(floats(after)[row * C + c], found * floats(weights)[row * C + c], 1e-6);
    return found;
  };
  const auto query = [&](int64_t h) { return factor(h * D + 1); };
  const auto key = [&](int64_t k) { return factor((H + k) * D); };
  EXPECT_NEAR(key(0), 0.5, 1e-6) << "the root of 100 / 400";
  EXPECT_NEAR(query(0), 0.5, 1e-6);
  EXPECT_NEAR(query(1) * key(0), 1, 1e-6) << "the scores of the other head of the group stay";
  for (const int64_t row : {4, 5, 6, 7, 10, 11, 12, 13, 14, 15}) EXPECT_EQ(factor(row), 1);
}

TEST_F(ClippedHeads, SlicesAndBiasesAreMultipliedAlike) {
  const std::vector<float> scores = {101, 1e30f, 250, 7};
  const Tensor whole = copy_of(weights), sliced = copy_of(weights);
  cpu.run(clip(whole, scores));
  const Tensor flat = sliced.view({sliced.numel()});
  for (int64_t first = 0; first < flat.numel(); first += 17) {
    ClipHeads part = clip(flat.rows(first, std::min<int64_t>(17, flat.numel() - first)), scores);
    part.first_element = first;
    cpu.run(part);
  }
  EXPECT_EQ(std::memcmp(sliced.data, whole.data, whole.bytes()), 0);
  const Tensor bias = make.zeros({(H + 2 * K) * D});
  for (int64_t row = 0; row < bias.numel(); ++row) bias.as<float>()[row] = floats(weights)[row * C];
  cpu.run(clip(bias, scores, 1));
  for (int64_t row = 0; row < bias.numel(); ++row) EXPECT_EQ(floats(bias)[row], floats(whole)[row * C]);
}

TEST_F(ClippedHeads, NothingChangesWhereTheStepDoesNot) {
  const Tensor after = copy_of(weights), verdict = make.zeros({1});
  const auto expect_same = [&](const char* why) {
    EXPECT_EQ(std::memcmp(after.data, weights.data, weights.bytes()), 0) << why;
  };
  cpu.run(clip(after, {100, 99, 0, -INFINITY}));
  expect_same("no score is above the limit");
  cpu.run(clip(after, {INFINITY, 3, 0, 1}));
  expect_same("a score that is not finite");
  ClipHeads op = clip(after, {400, 400, 400, 400});
  verdict.as<float>()[0] = static_cast<float>(StepVerdict::kAbove), op.verdict = verdict;
  cpu.run(op);
  expect_same("the step made no update");
  op.verdict = {}, norm.as<float>()[0] = NAN;
  cpu.run(op);
  expect_same("gradients are not finite");
}

TEST_F(ClippedHeads, WrongArgumentsAreRefused) {
  ClipHeads layer = clip(weights, {1, 1, 1, 1}), slice = layer, heads = layer, most = layer;
  layer.layer = 3, slice.first_element = 1, heads.kv_heads = 3, most.most = 0;
  EXPECT_THROW(cpu.run(layer), Error);
  EXPECT_THROW(cpu.run(slice), Error);
  EXPECT_THROW(cpu.run(heads), Error);
  EXPECT_THROW(cpu.run(most), Error);
}

}  // namespace
}  // namespace tessera::testing

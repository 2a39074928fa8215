// The numbers of docs/attention.md, section 10: what rules of scores make of the example of section 2.
#include "kernels/score_ops.h"
#include "tests/kernels/attention_heads.h"

namespace tessera::testing {
namespace {

constexpr int64_t kKeys = 8, kWidth = 4;
constexpr float kQuery[kWidth] = {1, 0, 2, 1};
constexpr float kExampleKeys[kKeys][kWidth] = {{1, 1, 0, 0}, {0, 1, 1, 0}, {1, 0, 1, 1}, {0, 0, 1, 0},
                                               {2, 1, 1, 1}, {0, 1, 0, 1}, {1, 1, 1, 0}, {0, 0, 0, 1}};
constexpr float kExampleValues[kKeys][kWidth] = {{2, 1, 0, 3}, {1, 0, 1, 2}, {0, 2, 1, 1}, {3, 1, 0, 0},
                                                 {1, 3, 2, 0}, {0, 1, 0, 2}, {2, 0, 1, 1}, {1, 0, 0, 3}};
constexpr double kDigits = 5e-5;  // as they are printed

struct WorkedExamples : AttentionHeads {
  // Of the last query; all rows have the same
  struct Row {
    double lse = 0;
    std::vector<float> out;
    float largest = 0;
    float dsink = 0;  // with dout = (1 0 0 0) of this row
  };
  Inputs inputs() {
    const AttentionShape s{1, kKeys, 1, kWidth, AttentionMask(false), 1};
    Inputs in = packed_inputs(s);
    for (int64_t i = 0; i < kKeys; ++i) {
      std::copy_n(kQuery, kWidth, heads_of<float>(in.q).row_begin(i));
      std::copy_n(kExampleKeys[i], kWidth, heads_of<float>(in.k).row_begin(i));
      std::copy_n(kExampleValues[i], kWidth, heads_of<float>(in.v).row_begin(i));
    }
    in.dy = make.zeros({1, kKeys, 1, kWidth});
    in.dy.as<float>()[(kKeys - 1) * kWidth] = 1;
    return in;
  }
  Row row_of(const AttentionScores& rule, float sink = 0, const BlockLists* blocks = nullptr) {
    AttentionShape s{1, kKeys, 1, kWidth, AttentionMask(false), 1};
    s.scores = rule;
    Inputs in = inputs();
    if (blocks) {
      s.mask.blocks = blocks->shape();
      in.tables.blocks = make.empty({std::ssize(blocks->numbers())}, DType::kI32);
      std::ranges::copy(blocks->numbers(), in.tables.blocks.as<int32_t>());
    }
    AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
    plan.scale = 1;
    const Tensor sinks = rule.sinks ? make.zeros({1}) : Tensor{},
                 dsinks = rule.sinks ? make.zeros({1}) : Tensor{};
    if (rule.sinks) sinks.as<float>()[0] = sink;
    const Result r{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), poisoned_heads(s, 1),
                   poisoned_heads(s, 1), poisoned_heads(s, 1)};
    const Tensor workspace = workspace_of(plan);
    AttentionForward there = forward(plan, in, r, workspace);
    AttentionBackward back = backward(plan, in, r, workspace);
    there.sinks = back.sinks = sinks, back.dsinks = dsinks, back.accumulate = false;
    cpu.run(there);
    cpu.run(back);
    const float* out = r.y.as<float>() + (kKeys - 1) * kWidth;
    return {.lse = floats(r.saved)[kKeys - 1],
            .out = {out, out + kWidth},
            .largest = blocks ? largest_of(plan, in) : largest_of_last(in, rule),
            .dsink = rule.sinks ? floats(dsinks)[0] : 0};
  }
  float largest_of(const AttentionPlan& plan, const Inputs& in) {
    const Tensor largest = make.empty({1}, DType::kI32);
    largest.as<uint32_t>()[0] = 0;
    cpu.run(LargestScores{.plan = plan, .q = in.q, .k = in.k, .tables = in.tables, .largest = largest});
    return float_of_ordered(largest.as<uint32_t>()[0]);
  }
  float largest_of_last(const Inputs& all, const AttentionScores& rule) {
    AttentionMask mask(true);
    mask.offset = kKeys - 1;
    AttentionShape s{1, 1, 1, kWidth, mask, 1, kKeys};
    s.scores = rule;
    AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
    plan.scale = 1;
    const Tensor query = make.empty({1, 1, 1, kWidth});
    std::copy_n(kQuery, kWidth, query.as<float>());
    return largest_of(plan, {.q = all_heads(query), .k = all.k, .v = all.v});
  }
  static void expect(const Row& row, double lse, const std::vector<double>& out, double largest) {
    EXPECT_NEAR(row.lse, lse, kDigits);
    for (size_t d = 0; d < out.size(); ++d) EXPECT_NEAR(row.out[d], out[d], kDigits) << d;
    EXPECT_NEAR(row.largest, largest, kDigits);
  }
};

TEST_F(WorkedExamples, PlainScores) { expect(row_of({}), 5.5055, {0.9198, 2.3057, 1.5401, 0.4520}, 5); }

TEST_F(WorkedExamples, ASink) {
  const Row row = row_of({.sinks = true}, 5);
  expect(row, 5.9775, {0.5737, 1.4381, 0.9606, 0.2819}, 5);
  EXPECT_NEAR(std::exp(5 - row.lse), 0.3763, kDigits);
  EXPECT_NEAR(row.out[0] / row_of({}).out[0], 0.6237, kDigits);
  EXPECT_NEAR(row.dsink, -0.2159, kDigits);
}

// Of eight heads the first has the slope 1/2.
TEST_F(WorkedExamples, Alibi) {
  expect(row_of({.alibi_heads = 8}), 4.0064, {1.1598, 2.0090, 1.5153, 0.5060}, 3.5);
  EXPECT_NEAR(std::exp(4 - 5.5055), 0.22, 0.005);
  EXPECT_NEAR(std::exp(1.5 - 4.0064), 0.08, 0.005);
  EXPECT_NEAR(std::exp(3 - 5.5055), 0.08, 0.005);
  EXPECT_NEAR(std::exp(2.5 - 4.0064), 0.22, 0.005);
}

TEST_F(WorkedExamples, ACap) {
  const Row row = row_of({.cap = 4});
  expect(row, 4.4329, {1.0517, 1.6992, 1.1832, 0.8047}, 3.3931);
  EXPECT_NEAR(1 - row.largest / 4 * row.largest / 4, 0.2804, kDigits);
  EXPECT_NEAR(1 - std::pow(std::tanh(0.25), 2), 0.94, kDigits);
  EXPECT_NEAR(50 * std::tanh(10.0 / 50), 9.87, 0.005);
  EXPECT_NEAR(50 * std::tanh(100.0 / 50), 48.2, 0.05);
}

// Blocks of four, of which the second sees itself
TEST_F(WorkedExamples, SparseBlocks) {
  const BlockLists lists(4, 1, kKeys, kKeys,
                         [](int64_t, int64_t query, int64_t key) { return query == key; });
  const Row row = row_of({}, 0, &lists);
  expect(row, 5.1587, {1.0998, 2.5754, 1.8220, 0.1936}, 5);
}

// Blocks of two, of which the last query sees its own and one that it chooses: the second, which scores as
// high as the third and stands before it
TEST_F(WorkedExamples, AMixtureOfBlocks) {
  AttentionShape s{1, kKeys, 1, kWidth, AttentionMask(true), 1};
  s.mask.choice = {.size = 2, .count = 2};
  AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
  plan.scale = 1;
  const Inputs in = inputs();
  const Result r{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), {}, {}, {}};
  cpu.run(forward(plan, in, r, workspace_of(plan)));
  EXPECT_NEAR(floats(r.saved)[kKeys - 1], 4.4402, kDigits);
  const double out[] = {0.7673, 1.3750, 0.8808, 0.9770};
  for (int64_t d = 0; d < kWidth; ++d)
    EXPECT_NEAR(floats(r.y)[static_cast<size_t>((kKeys - 1) * kWidth + d)], out[d], kDigits) << d;
}

// Section 8: 512 tokens in blocks of 128, of which each sees itself, the one before, and the first
TEST(WorkedLists, OfFourBlocks) {
  const BlockLists lists(128, 1, 512, 512, [](int64_t, int64_t query, int64_t key) {
    return key == 0 ? true : key == query || key + 1 == query;
  });
  EXPECT_EQ(lists.numbers(), (std::vector<int32_t>{0, 1, 3, 6, 9,                 // begins
                                                   0, 4, 6, 8, 9,                 // seen_begins
                                                   0, 0, 1, 0, 1, 2, 0, 2, 3,     // keys
                                                   0, 1, 2, 3, 1, 2, 2, 3, 3,     // queries
                                                   0, 0, 0, 0, 1, 1, 2, 1, 2}));  // places
  EXPECT_EQ(lists.shape().causal_pairs, 114'944);
  const auto pairs_of = [](int64_t tokens) {
    const BlockLists window(128, 1, tokens, tokens, [](int64_t, int64_t query, int64_t key) {
      return key <= query && (key < 2 || query - key < 8);
    });
    return window.shape().causal_pairs;
  };
  EXPECT_NEAR(pairs_of(32'768) / 1e6, 39.1, 0.05);
  EXPECT_NEAR(pairs_of(32'768) / (32'768.0 * 32'769 / 2), 0.073, 0.0005);
}

// After the clip, queries and keys have sqrt(4 / 5) of what they had.
TEST_F(WorkedExamples, AClippedHead) {
  const float weight = std::sqrt(4.0f / 5);
  EXPECT_NEAR(weight, 0.8944, kDigits);
  const Tensor words = make.empty({1, 1, 1}, DType::kI32), param = make.empty({3, 1}), norm = make.zeros({1});
  words.as<uint32_t>()[0] = ordered_word(5);
  std::fill_n(param.as<float>(), 3, 1.0f);
  cpu.run(ClipHeads{.param = param,
                    .low = {},
                    .columns = 1,
                    .head_dim = 1,
                    .kv_heads = 1,
                    .largest = words,
                    .layer = 0,
                    .most = 4,
                    .grad_norm = norm});
  EXPECT_NEAR(floats(param)[0], weight, 1e-6);
  EXPECT_NEAR(floats(param)[1], weight, 1e-6);
  EXPECT_EQ(floats(param)[2], 1) << "values stay";
  EXPECT_NEAR(5 * floats(param)[0] * floats(param)[1], 4, 1e-5);
}

}  // namespace
}  // namespace tessera::testing

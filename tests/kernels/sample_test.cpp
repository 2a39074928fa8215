// What an observer sees of attention and of the MLP, on the CPU: against fp64, written out.
#include <numeric>

#include "tests/kernels/attention_heads.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct AttentionSamples : AttentionHeads {
  // Of each head, the mean over its queries
  std::vector<double> expected_of(const AttentionPlan& plan, const Inputs& in,
                                    const std::vector<int64_t>& queries) {
    const AttentionShape& s = plan.shape;
    std::vector<double> heads(static_cast<size_t>(s.heads));
    for (int64_t h = 0; h < s.heads; ++h) {
      double entropies = 0, counted = 0;
      for (int64_t b = 0; b < std::min<int64_t>(s.batch, 8); ++b)
        for (const int64_t query : queries) {
          const attention::Mask mask = mask_of(plan, in.tables).of_sequence(b);
          std::vector<double> scores;
          for (int key = 0; key < mask.keys; ++key) {
            if (!mask.sees(static_cast<int>(query), key)) continue;
            double dot = 0;
            for (int64_t d = 0; d < s.head_dim; ++d)
              dot += static_cast<double>(heads_of<float>(in.q).one_head(b, h).row_begin(query)[d]) *
                     heads_of<float>(in.k).one_head(b, h / s.group()).row_begin(key)[d];
            scores.push_back(plan.scale * dot);
          }
          if (scores.empty()) continue;
          const double largest = std::ranges::max(scores);
          double sum = 0, entropy = 0;
          for (const double score : scores) sum += std::exp(score - largest);
          for (const double score : scores) {
            const double p = std::exp(score - largest) / sum;
            if (p > 0) entropy -= p * std::log(p);
          }
          entropies += entropy, counted += 1;
        }
      if (counted > 0) heads[static_cast<size_t>(h)] = entropies / counted;
    }
    return heads;
  }

  void expect_fp64(const AttentionShape& s, const std::vector<int64_t>& queries,
                   const MaskTables& tables = {}, float scale = 0) {
    SCOPED_TRACE(fmt::format("{} B {} T {} keys {} H {} K {}", to_string(s.mask), s.batch, s.tokens,
                             s.kv_tokens, s.heads, s.kv_heads));
    Inputs in = inputs_apart(s);
    in.tables = tables;
    AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
    if (scale > 0) plan.scale = scale;
    const Tensor found = make.poisoned({s.heads});
    cpu.run(AttentionSample{.plan = plan, .q = in.q, .k = in.k, .tables = in.tables, .entropy = found});
    const std::vector<double> expected = expected_of(plan, in, queries);
    for (size_t h = 0; h < expected.size(); ++h)
      EXPECT_NEAR(floats(found)[h], expected[h],
                  tolerance::kCpuOperation * std::max(1.0, plan.scale * std::sqrt(s.head_dim)));
  }
};

std::vector<int64_t> all_of(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST_F(AttentionSamples, OfEveryMaskAreThoseOfFp64) {
  AttentionMask window(true), offset(true);
  window.window = 7, offset.offset = -3;
  for (const AttentionMask& mask : {AttentionMask(false), AttentionMask(true), window, offset})
    for (const int64_t heads : {2, 4}) expect_fp64({3, 21, heads, 9, mask, 2}, all_of(21));
  MaskTables tables;
  const std::vector<int32_t> spans = test::documents_from({0, 4, 5, 12, 21, 30, 42}, 2, 21);
  tables.documents = make.empty({2, 21, 2}, DType::kI32);
  std::ranges::copy(spans, tables.documents.as<int32_t>());
  expect_fp64({2, 21, 2, 8, AttentionMask(true, true), 1}, all_of(21), tables);
}

TEST_F(AttentionSamples, TakesSixtyFourQueriesOfEightSequences) {
  std::vector<int64_t> queries;
  for (int64_t i = 1; i <= 64; ++i) queries.push_back(i * 150 / 64 - 1);
  EXPECT_EQ(queries.back(), 149);
  expect_fp64({10, 150, 2, 8, AttentionMask(true), 2}, queries);
  expect_fp64({1, 64, 2, 8, AttentionMask(true), 2}, all_of(64));
  EXPECT_EQ(AttentionSample::query(0, 1'000'000), 15'624);
  EXPECT_EQ(AttentionSample::query(63, 1'000'000), 999'999);
}

// One key has all of the probability: entropy 0; and all have the same: the log of their number.
TEST_F(AttentionSamples, OfExtremeScores) {
  expect_fp64({1, 16, 2, 8, AttentionMask(true), 2}, all_of(16), {}, 1000);
  const AttentionShape s{1, 16, 1, 8, AttentionMask(false), 1};
  const AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
  const Tensor zeros = make.zeros({1, 16, 1, 8}), found = make.poisoned({1});
  const AttentionSample op{.plan = plan, .q = all_heads(zeros), .k = all_heads(zeros), .entropy = found};
  cpu.run(op);
  EXPECT_NEAR(floats(found)[0], std::log(16), 1e-6);
  EXPECT_THROW(cpu.run(AttentionSample{.plan = plan,
                                       .q = all_heads(zeros),
                                       .k = all_heads(zeros),
                                       .entropy = make.zeros({2})}),
               Error);
}

TEST_F(AttentionSamples, DeadUnitsAreThoseThatNoRowMoves) {
  const Tensor x = make.zeros({5, 700}), maxima = make.zeros({700}), dead = make.poisoned({1});
  const auto at = [&](int64_t row, int64_t unit) -> float& { return x.as<float>()[row * 700 + unit]; };
  for (int64_t unit = 0; unit < 700; ++unit)
    if (unit % 3 > 0) at(unit % 5, unit) = unit % 2 ? 0.5f : -0.25f;
  at(4, 0) = DeadUnits::kThreshold, at(0, 3) = -1.01f * DeadUnits::kThreshold, at(1, 6) = NAN;
  cpu.run(DeadUnits{.x = x.rows(0, 2), .maxima = maxima, .dead = dead});
  const float of_two_rows = floats(dead)[0];
  cpu.run(DeadUnits{.x = x.rows(2, 3), .maxima = maxima, .dead = dead});
  EXPECT_EQ(floats(dead)[0], 234 - 2) << "every third one, but for two that are above the threshold";
  EXPECT_GT(of_two_rows, floats(dead)[0]);
  EXPECT_EQ(floats(maxima)[1], 0.5f);
  EXPECT_EQ(floats(maxima)[2], 0.25f);
  EXPECT_TRUE(std::isnan(floats(maxima)[6])) << "NaN is no dead unit";
  EXPECT_THROW(cpu.run(DeadUnits{.x = x, .maxima = make.zeros({5}), .dead = dead}), Error);
}

}  // namespace
}  // namespace tessera::testing

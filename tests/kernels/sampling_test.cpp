// SampleTokens on the CPU: against the filters' formulas in fp64, which are held against transformers;
// against a plain implementation of kernels/token_draw.h; and by the frequencies of 100,000 draws.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "kernels/token_draw.h"
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The tokens from the most probable on, after the repetition penalty; ties by id
struct Ordered {
  std::vector<float> x;
  std::vector<int32_t> order;
};
Ordered in_order(std::span<const float> logits, const std::set<int32_t>& seen, const SamplingRule& rule) {
  Ordered of{{logits.begin(), logits.end()}, std::vector<int32_t>(logits.size())};
  for (const int32_t token : seen) {
    float& x = of.x[static_cast<size_t>(token)];
    x = x > 0 ? x / rule.repetition_penalty : x * rule.repetition_penalty;
  }
  std::iota(of.order.begin(), of.order.end(), 0);
  std::ranges::stable_sort(of.order, [&](int32_t a, int32_t b) { return of.x[a] > of.x[b]; });
  return of;
}

// The probabilities of all tokens, as the filters are defined
Doubles probabilities(std::span<const float> logits, const std::set<int32_t>& seen,
                      const SamplingRule& rule) {
  Doubles p(logits.size());
  const auto [x, order] = in_order(logits, seen, rule);
  const double largest = x[order[0]];
  size_t count = order.size();
  if (rule.temperature == 0) count = 1;
  if (rule.top_k > 0) count = std::min<size_t>(count, rule.top_k);
  double total = 0, sum = 0;
  for (size_t i = 0; i < count; ++i)
    total += p[order[i]] = rule.temperature == 0 ? 1 : std::exp((x[order[i]] - largest) / rule.temperature);
  double kept = 0;
  for (size_t i = 0; i < count; ++i) {
    double& its = p[order[i]];
    const bool keeps = sum < static_cast<double>(rule.top_p) * total && its >= rule.min_p;
    sum += its;
    if (!keeps) its = 0;
    kept += its;
  }
  for (double& its : p) its /= kept;
  return p;
}

// One draw as the comment of kernels/token_draw.h says, by sorting
int32_t plain_draw(std::span<const float> logits, const std::set<int32_t>& seen, const SamplingRule& rule,
                   uint64_t seed, int32_t sequence, int32_t draw) {
  const auto [x, order] = in_order(logits, seen, rule);
  if (rule.temperature == 0) return order[0];
  size_t count = order.size();
  if (rule.top_k > 0) count = std::min<size_t>(count, rule.top_k);
  std::vector<uint64_t> weights(x.size());
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i)
    total += weights[order[i]] = weight_of(x[order[i]], x[order[0]], rule.temperature);
  uint64_t sum = 0, kept = 0;
  const uint64_t enough = rule.top_p < 1 ? top_p_weight(rule.top_p, total) : total;
  for (size_t i = 0; i < count; ++i) {
    uint64_t& its = weights[order[i]];
    const bool keeps = sum < enough && its >= min_p_weight(rule.min_p);
    sum += its;
    if (!keeps) its = 0;
    kept += its;
  }
  uint64_t left = drawn_weight(seed, sequence, draw, kept);
  int32_t token = 0;
  for (; left >= weights[token]; ++token) left -= weights[token];
  return token;
}

// The arguments of an operation over B sequences of V tokens, numbered from `first_sequence`
struct Sampling {
  Sampling(HostTensors& make, int64_t B, int64_t V, int64_t padding = 3, int32_t first_sequence = 0)
      : V(V),
        logits(make.poisoned({B, V + padding})),
        seen(make.empty({B, (V + 31) / 32}, DType::kI32)),
        draws(make.empty({B, 2}, DType::kI32)),
        starts(make.empty({B}, DType::kI32)),
        tokens(make.empty({B}, DType::kI32)) {
    for (const Tensor& t : {seen, draws, starts}) std::memset(t.data, 0, t.bytes());
    for (int64_t b = 0; b < B; ++b) draws.as<int32_t>()[2 * b] = first_sequence + static_cast<int32_t>(b);
  }
  std::span<float> row(int64_t b) const {
    return floats(logits).subspan(static_cast<size_t>(b * logits.shape[1]), static_cast<size_t>(V));
  }
  void fill(std::span<const float> values) const {
    for (int64_t b = 0; b < logits.shape[0]; ++b) std::ranges::copy(values, row(b).begin());
  }
  void see(int64_t b, int32_t token) const {
    seen.as<int32_t>()[b * seen.shape[1] + token / 32] |= static_cast<int32_t>(1u << token % 32);
  }
  bool has_seen(int64_t b, int32_t token) const {
    return seen.as<int32_t>()[b * seen.shape[1] + token / 32] >> token % 32 & 1;
  }
  SampleTokens op(const SamplingRule& rule, uint64_t seed = 5) const {
    return {logits, V, rule, seed, seen, draws, starts, tokens};
  }
  int32_t token(int64_t b) const { return tokens.as<int32_t>()[b]; }

  int64_t V;
  Tensor logits, seen, draws, starts, tokens;
};

struct NamedRule {
  const char* name;
  SamplingRule rule;
};
const NamedRule kRules[] = {
    {"none", {}},
    {"temperature 0.5", {.temperature = 0.5f}},
    {"temperature 3", {.temperature = 3}},
    {"penalty above 1", {.repetition_penalty = 1.7f}},
    {"penalty below 1", {.repetition_penalty = 0.6f}},
    {"top_k 1", {.top_k = 1}},
    {"top_k 7", {.top_k = 7}},
    {"top_k above V", {.top_k = 1000}},
    {"top_p 0.1", {.top_p = 0.1f}},
    {"top_p 0.9", {.top_p = 0.9f}},
    {"min_p 0.05", {.min_p = 0.05f}},
    {"min_p 1", {.min_p = 1}},
    {"top_k, top_p", {.top_k = 12, .top_p = 0.7f}},
    {"top_p, min_p", {.temperature = 1.5f, .top_p = 0.8f, .min_p = 0.2f}},
    {"all", {.repetition_penalty = 1.3f, .temperature = 0.8f, .top_k = 20, .top_p = 0.9f, .min_p = 0.02f}},
};

struct SamplingTest : ::testing::Test {
  std::vector<float> normal_logits(int64_t V, double deviation = 2) {
    const Tensor t = make.normal({V}, deviation);
    return {floats(t).begin(), floats(t).end()};
  }

  HostTensors make;
  CpuStream cpu;
};

// 100,000 draws against the probabilities: Pearson's statistic, where tokens expected less than five times
// are one bin. P(X >= k + 2 sqrt(k x) + 2 x) <= exp(-x) for k degrees of freedom (Laurent and Massart, Annals
// of Statistics 28, 2000); x = 20 is 2e-9.
TEST_F(SamplingTest, DrawsWithTheFilteredProbabilities) {
  constexpr int64_t kSequences = 500, kSteps = 200, kVocab = 70;
  constexpr double kDraws = kSequences * kSteps, kX = 20;
  const std::vector<float> logits = normal_logits(kVocab);
  const std::set<int32_t> seen{0, 3, 31, 32, 40, 69};
  for (const auto& [name, rule] : kRules) {
    SCOPED_TRACE(name);
    const Sampling s(make, kSequences, kVocab);
    s.fill(logits);
    std::vector<double> counts(kVocab);
    for (int64_t step = 0; step < kSteps; ++step) {
      std::memset(s.seen.data, 0, s.seen.bytes());
      for (int64_t b = 0; b < kSequences; ++b)
        for (const int32_t token : seen) s.see(b, token);
      cpu.run(s.op(rule));
      for (int64_t b = 0; b < kSequences; ++b) {
        ASSERT_GE(s.token(b), 0);
        ASSERT_LT(s.token(b), kVocab);
        ++counts[s.token(b)];
      }
    }
    const Doubles p = probabilities(logits, seen, rule);
    double statistic = 0, rare = 0, rare_count = 0;
    int bins = 0;
    const auto add = [&](double expected, double count) {
      statistic += (count - expected) * (count - expected) / expected;
      ++bins;
    };
    for (size_t t = 0; t < p.size(); ++t) {
      EXPECT_TRUE(p[t] > 0 || counts[t] == 0) << "token " << t << " is filtered";
      if (p[t] * kDraws >= 5) {
        add(p[t] * kDraws, counts[t]);
      } else {
        rare += p[t] * kDraws, rare_count += counts[t];
      }
    }
    if (rare >= 5) add(rare, rare_count);
    const double k = bins - 1;
    EXPECT_LE(statistic, k + 2 * std::sqrt(k * kX) + 2 * kX) << bins << " bins";
  }
}

// The same tokens as a plain implementation gives, over vocabularies around the sizes of words and blocks,
// with ties and infinitely small logits among them.
TEST_F(SamplingTest, DrawsWhatAPlainImplementationDraws) {
  const std::set<int32_t> seen{0, 5};
  for (const int64_t V : {6, 32, 33, 1023, 1024, 1025, 2080, 5000})
    for (const auto& [name, rule] : kRules)
      for (const bool coarse : {false, true}) {
        SCOPED_TRACE(fmt::format("V {}, {}, {}", V, name, coarse ? "ties" : "no ties"));
        std::vector<float> logits = normal_logits(V, 3);
        for (float& x : logits) {
          if (coarse) x = std::round(x);
          if (x < -4) x = -kInfinity;
        }
        const Sampling s(make, 8, V, 1, 40);
        s.fill(logits);
        for (int64_t b = 0; b < 8; ++b)
          for (const int32_t token : seen) s.see(b, token);
        cpu.run(s.op(rule, 0x123456789abcdef0));
        for (int32_t b = 0; b < 8; ++b)
          ASSERT_EQ(s.token(b), plain_draw(logits, seen, rule, 0x123456789abcdef0, 40 + b, 0));
      }
}

TEST(OrderOfNumbers, IsThatOfTheirValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const float numbers[] = {-inf, -3e38f, -1.5f, -1e-40f, 0, 1e-40f, 1, 1.0000001f, 3e38f, inf};
  for (size_t i = 0; i < std::size(numbers); ++i) {
    EXPECT_EQ(number_of(order_of(numbers[i])), numbers[i]);
    if (i == 0) continue;
    EXPECT_LT(order_of(numbers[i - 1]), order_of(numbers[i]));
  }
  EXPECT_EQ(order_of(-0.0f), order_of(0.0f));
}

// Weights stand for exp(x - largest) with the error of fp32's exp(), and are cut off below 2^-40.
TEST_F(SamplingTest, WeightsAreTheExponential) {
  EXPECT_EQ(weight_of(3.5f, 3.5f, 0.7f), kWholeWeight);
  EXPECT_EQ(weight_of(-kInfinity, 3.5f, 0.7f), 0u);
  EXPECT_EQ(weight_of(-3e38f, 3e38f, 1e-30f), 0u);
  EXPECT_EQ(weight_of(-kInfinity, 3.5f, kInfinity), 0u);
  uint64_t before = kWholeWeight;
  for (int i = 1; i < 60000; ++i) {
    const float x = static_cast<float>(-i) * 0.0005f;
    const double want = std::exp(static_cast<double>(x)) * static_cast<double>(kWholeWeight);
    const uint64_t weight = weight_of(x + 2, 2, 1);
    const double got = static_cast<double>(weight);
    // x + 2 - 2 is off by a rounding of 2 or of x; the polynomial and its steps by four
    const double allowed = want * tolerance::kRoundingF32 * (2 + std::abs(x) + 4) + 1;
    ASSERT_NEAR(got, want, allowed) << x;
    before = weight;
  }
  EXPECT_EQ(before, 0u);
}

// What transformers computes: tests/fixtures/make_sampling_reference.py
TEST_F(SamplingTest, FiltersAreThoseOfTransformers) {
  const auto reference = nlohmann::json::parse(
      std::ifstream(std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/fixtures/sampling/reference.json"));
  const std::vector<float> logits = reference.at("logits");
  const std::set<int32_t> seen = reference.at("seen");
  ASSERT_GE(reference.at("rules").size(), 10u);
  for (const auto& of : reference.at("rules")) {
    const auto& words = of.at("rule");
    SCOPED_TRACE(words.dump());
    SamplingRule rule;
    rule.repetition_penalty = words.value("repetition_penalty", 1.0f);
    rule.temperature = words.value("temperature", 1.0f);
    rule.top_k = words.value("top_k", 0);
    rule.top_p = words.value("top_p", 1.0f);
    rule.min_p = words.value("min_p", 0.0f);
    const Doubles want = of.at("probabilities");
    const Doubles got = probabilities(logits, seen, rule);
    ASSERT_EQ(got.size(), want.size());
    for (size_t t = 0; t < got.size(); ++t) {
      EXPECT_EQ(got[t] == 0, want[t] == 0) << t;
      EXPECT_NEAR(got[t], want[t], 1e-6) << t;  // transformers computes in fp32
    }
  }
}

TEST_F(SamplingTest, TiesGoToTheLowerId) {
  const Sampling s(make, 200, 100);
  std::vector<float> logits(100, -1);
  for (const int t : {20, 33, 64, 90}) logits[static_cast<size_t>(t)] = 2;
  logits[64] = -0.0f, logits[33] = 0.0f, logits[20] = logits[90] = 0;  // of either sign
  s.fill(logits);
  const auto drawn = [&](const SamplingRule& rule) {
    std::memset(s.draws.data, 0, s.draws.bytes());
    for (int64_t b = 0; b < 200; ++b) s.draws.as<int32_t>()[2 * b] = static_cast<int32_t>(b);
    cpu.run(s.op(rule));
    std::set<int32_t> tokens;
    for (int64_t b = 0; b < 200; ++b) tokens.insert(s.token(b));
    return tokens;
  };
  EXPECT_EQ(drawn({.temperature = 0}), (std::set<int32_t>{20}));
  EXPECT_EQ(drawn({.top_k = 1}), (std::set<int32_t>{20}));
  EXPECT_EQ(drawn({.top_k = 3}), (std::set<int32_t>{20, 33, 64}));
  // Four of weight 1, and 96 of exp(-1 / 0.1): the first two are 0.4995 of all
  EXPECT_EQ(drawn({.temperature = 0.1f, .top_p = 0.45f}), (std::set<int32_t>{20, 33}));
  EXPECT_EQ(drawn({.min_p = 1}), (std::set<int32_t>{20, 33, 64, 90}));
}

TEST_F(SamplingTest, TemperatureZeroTakesTheMostProbableAfterThePenalty) {
  const Sampling s(make, 1, 4);
  s.fill(std::vector<float>{1, 4, 3, -1});
  cpu.run(s.op({.repetition_penalty = 2, .temperature = 0}));
  EXPECT_EQ(s.token(0), 1);
  cpu.run(s.op({.repetition_penalty = 2, .temperature = 0}));  // 4 has become 2
  EXPECT_EQ(s.token(0), 2);
  cpu.run(s.op({.repetition_penalty = 2, .temperature = 0}));  // and 3 1.5
  EXPECT_EQ(s.token(0), 1);
  s.fill(std::vector<float>{-5, -1, -1.5f, -3});  // -2 and -3 for those seen
  cpu.run(s.op({.repetition_penalty = 2, .temperature = 0}));
  EXPECT_EQ(s.token(0), 1);
  s.fill(std::vector<float>{-5, -2, -1.5f, -2.5f});
  cpu.run(s.op({.repetition_penalty = 2, .temperature = 0}));
  EXPECT_EQ(s.token(0), 3);
}

// A temperature so low that a difference divided by it overflows
TEST_F(SamplingTest, ATemperatureNearZeroIsTemperatureZero) {
  const Sampling s(make, 50, 300);
  s.fill(normal_logits(300));
  cpu.run(s.op({.temperature = 0}));
  const int32_t most = s.token(0);
  for (const float temperature : {1e-45f, 1e-38f, 1e-30f})
    for (const float top_p : {1.0f, 0.5f}) {
      cpu.run(s.op({.temperature = temperature, .top_p = top_p}));
      for (int64_t b = 0; b < 50; ++b) EXPECT_EQ(s.token(b), most) << temperature;
    }
}

TEST_F(SamplingTest, CountsWhatItDraws) {
  const Sampling s(make, 3, 40);
  s.fill(normal_logits(40));
  s.starts.as<int32_t>()[0] = 7;
  s.starts.as<int32_t>()[1] = -1;
  s.draws.as<int32_t>()[1] = 2;
  cpu.run(s.op({}));
  EXPECT_EQ(s.token(1), kIdleToken);
  for (const int64_t b : {0, 2}) {
    for (int32_t t = 0; t < 40; ++t) EXPECT_EQ(s.has_seen(b, t), t == s.token(b)) << b << " " << t;
  }
  for (int32_t t = 0; t < 40; ++t) EXPECT_FALSE(s.has_seen(1, t));
  const auto ints = [](const Tensor& t) {
    return std::vector<int32_t>(t.as<int32_t>(), t.as<int32_t>() + t.numel());
  };
  EXPECT_EQ(ints(s.starts), (std::vector<int32_t>{8, -1, 1}));
  EXPECT_EQ(ints(s.draws), (std::vector<int32_t>{0, 3, 1, 0, 2, 1}));
}

// A sequence draws the same tokens alone as beside others, in any place.
TEST_F(SamplingTest, DependsOnSeedSequenceAndDrawAlone) {
  constexpr SamplingRule kRule{.top_k = 50, .top_p = 0.95f};
  const std::vector<float> logits = normal_logits(400, 1);
  const auto ten_draws = [&](int64_t B, int64_t place, int32_t first, uint64_t seed) {
    const Sampling s(make, B, 400, 3, first);
    s.fill(logits);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 10; ++i) {
      cpu.run(s.op(kRule, seed));
      tokens.push_back(s.token(place));
    }
    return tokens;
  };
  const std::vector<int32_t> tokens = ten_draws(1, 0, 9, 77);
  EXPECT_EQ(ten_draws(4, 2, 7, 77), tokens);
  EXPECT_NE(ten_draws(1, 0, 9, 78), tokens);
  EXPECT_NE(ten_draws(1, 0, 10, 77), tokens);
  EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 3u);
}

TEST_F(SamplingTest, LogitsThatAreNoNumbersDrawNothingAndEndTheSequence) {
  const Sampling s(make, 6, 2000);
  s.fill(normal_logits(2000));
  s.row(0)[1500] = NAN;
  s.row(1)[3] = kInfinity;
  std::ranges::fill(s.row(2), -kInfinity);
  std::ranges::fill(s.row(3), NAN);
  s.row(4)[3] = -kInfinity;
  for (const SamplingRule& rule : {SamplingRule{}, {.temperature = 0}, {.top_k = 5}, {.top_p = 0.5f}}) {
    for (int64_t b = 0; b < 6; ++b) s.starts.as<int32_t>()[b] = 9;
    cpu.run(s.op(rule));
    for (int64_t b = 0; b < 6; ++b) EXPECT_EQ(s.starts.as<int32_t>()[b], b < 4 ? -1 : 10) << b;
    for (int64_t b = 0; b < 4; ++b) EXPECT_EQ(s.token(b), kBadLogits) << b;
    for (int64_t b = 4; b < 6; ++b) EXPECT_GE(s.token(b), 0) << b;
  }
  for (int64_t b = 0; b < 6; ++b) EXPECT_EQ(s.draws.as<int32_t>()[2 * b + 1], b < 4 ? 0 : 4);
}

TEST_F(SamplingTest, RefusesWhatDoesNotFit) {
  Sampling s(make, 2, 40);
  s.fill(normal_logits(40));
  const auto refused = [&](const SamplingRule& rule, std::string_view found) {
    EXPECT_TRUE(says(refusal_of(cpu, s.op(rule)), {"sample tokens: rule ", "temperature", "top_k", "top_p",
                                                   "min_p", "repetition_penalty", found}));
  };
  refused({.temperature = -1}, "found -1, 0, 1, 0 and 1");
  refused({.top_p = 0}, "found 1, 0, 0, 0 and 1");
  refused({.repetition_penalty = 0}, "found 1, 0, 1, 0 and 0");
  refused({.temperature = NAN}, "found nan, 0, 1, 0 and 1");
  s.V = 44;
  EXPECT_TRUE(says(refusal_of(cpu, s.op({})), {"sample tokens: vocab_size 44 ", "fp32 [2, 43]"}));
  s.V = 32;
  EXPECT_TRUE(
      says(refusal_of(cpu, s.op({})), {"sample tokens: seen ", "int32 [2, 1] on cpu", "found int32 [2, 2]"}));
}

}  // namespace
}  // namespace tessera::testing

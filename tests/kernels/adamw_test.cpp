// AdamW on the CPU: its formula, what it leaves alone, and moments in bf16, rounded at random.
#include "kernels/base/bf16.h"
#include "tests/says.h"
#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

struct AdamWOnCpu : ::testing::Test {
  HostTensors make;
  CpuStream cpu;

  // An unclipped step without decay, to be changed where a test wants another.
  AdamW plain_step(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v) {
    const Tensor norm = make.zeros({1});
    return {.parts = {{.param = p, .low = {}, .grad = g, .m = m, .v = v, .decayed = p.numel()}},
            .grad_norm = norm,
            .max_norm = 0,
            .learning_rate = 1e-2,
            .beta1 = 0.9,
            .beta2 = 0.999,
            .epsilon = 1e-8,
            .weight_decay = 0,
            .step = 10'001};  // late enough for moments that need no correction
  }
  Tensor filled(int64_t count, float value) {
    const Tensor t = make.empty({count});
    for (float& x : floats(t)) x = value;
    return t;
  }
  Tensor bf16_of(const Tensor& t) {
    const Tensor rounded = make.empty(t.shape, DType::kBF16);
    cpu.run(Copy{t, rounded});
    return rounded;
  }
  Tensor fp32_of(const Tensor& t) {
    const Tensor wide = make.empty(t.shape);
    cpu.run(Copy{t, wide});
    return wide;
  }
};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

double mean(const Tensor& t) {
  double sum = 0;
  for (const float x : floats(t)) sum += x;
  return sum / static_cast<double>(t.numel());
}

// The update written out in fp64, three steps, clipped.
TEST_F(AdamWOnCpu, MatchesItsFormula) {
  const int64_t n = 33;
  const Tensor p = make.normal({n}), g = make.normal({n}), m = make.zeros({n}), v = make.zeros({n}),
               norm = make.zeros({1});
  std::vector<double> ep(floats(p).begin(), floats(p).end()), em(n), ev(n);
  const double rate = 1e-2, b1 = 0.9, b2 = 0.999, eps = 1e-8, decay = 0.1, max_norm = 0.5;
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<Tensor> all{g};
    cpu.run(GlobalNorm{.tensors = all, .norm = norm});
    cpu.run(AdamW{.parts = {{.param = p, .low = {}, .grad = g, .m = m, .v = v, .decayed = p.numel()}},
                  .grad_norm = norm,
                  .max_norm = max_norm,
                  .learning_rate = rate,
                  .beta1 = b1,
                  .beta2 = b2,
                  .epsilon = eps,
                  .weight_decay = decay,
                  .step = step});
    const double clip = std::min(1.0, max_norm / (std::sqrt(dot(g, g)) + 1e-6));
    for (int64_t i = 0; i < n; ++i) {
      const double gi = floats(g)[i] * clip;
      em[i] = b1 * em[i] + (1 - b1) * gi;
      ev[i] = b2 * ev[i] + (1 - b2) * gi * gi;
      ep[i] -= rate * decay * ep[i];
      ep[i] -= rate * em[i] / (1 - std::pow(b1, step)) / (std::sqrt(ev[i] / (1 - std::pow(b2, step))) + eps);
      EXPECT_NEAR(floats(p)[i], ep[i], 2e-6);
    }
  }
}

TEST_F(AdamWOnCpu, LeavesEverythingAloneWhenTheNormIsNotFinite) {
  const Tensor p = make.normal({4}), before = make.copy_of(p), g = make.normal({4}), m = make.zeros({4}),
               v = make.zeros({4});
  const Tensor norm = make.poisoned({1});
  cpu.run(AdamW{.parts = {{.param = p, .low = {}, .grad = g, .m = m, .v = v, .decayed = p.numel()}},
                .grad_norm = norm,
                .max_norm = 1,
                .learning_rate = 1,
                .beta1 = 0.9,
                .beta2 = 0.9,
                .epsilon = 1e-8,
                .weight_decay = 0,
                .step = 1});
  EXPECT_EQ(relative_error(p, before), 0);
  EXPECT_EQ(dot(m, m) + dot(v, v), 0);
}

TEST_F(AdamWOnCpu, LeavesEverythingAloneByAVerdict) {
  const Tensor p = make.normal({4}), before = make.copy_of(p), g = make.normal({4}), m = make.zeros({4}),
               v = make.zeros({4}), losses = make.normal({3, 2}), sums = make.zeros({2}),
               verdict = make.poisoned({1}), norm = make.zeros({1}), limits = make.zeros({2});
  norm.as<float>()[0] = 1;
  limits.as<float>()[0] = limits.as<float>()[1] = 1e30f;
  AdamW step = plain_step(p, g, m, v);
  step.grad_norm = norm, step.verdict = verdict;
  const auto judged = [&] {
    cpu.run(SumLosses{.losses = losses, .sum = sums.rows(1, 1)});
    cpu.run(JudgeStep{.losses = sums, .grad_norm = norm, .limits = limits, .verdict = verdict});
    cpu.run(step);
    return static_cast<StepVerdict>(verdict.as<float>()[0]);
  };
  losses.as<float>()[4] = NAN;
  EXPECT_EQ(judged(), StepVerdict::kNotFinite);
  losses.as<float>()[4] = 1, norm.as<float>()[0] = INFINITY;
  EXPECT_EQ(judged(), StepVerdict::kNotFinite);
  norm.as<float>()[0] = 1, limits.as<float>()[1] = 0.99f;
  EXPECT_EQ(judged(), StepVerdict::kAbove);
  losses.as<float>()[0] = 1e4f, limits.as<float>()[0] = 9e3f, limits.as<float>()[1] = 1;
  EXPECT_EQ(judged(), StepVerdict::kAbove);
  EXPECT_EQ(relative_error(p, before), 0);
  EXPECT_EQ(dot(m, m) + dot(v, v), 0);
  limits.as<float>()[0] = 2e4f;  // and the norm is its limit
  EXPECT_EQ(judged(), StepVerdict::kUpdate);
  double sum = 0;
  for (int i = 0; i < 6; ++i) sum += losses.as<float>()[i];
  EXPECT_EQ(sums.as<float>()[1], static_cast<float>(sum));
  EXPECT_GT(relative_error(p, before), 0);
}

TEST_F(AdamWOnCpu, TakesTheNormInParts) {
  const auto stepped = [&](std::initializer_list<float> norms) {
    HostTensors same;  // the same random tensors each time
    const Tensor p = make.copy_of(same.normal({100})), g = make.copy_of(same.normal({100}));
    const Tensor norm = make.empty({static_cast<int64_t>(norms.size())});
    std::copy(norms.begin(), norms.end(), norm.as<float>());
    const Tensor m = make.zeros({100});
    AdamW a = plain_step(p, g, m, make.zeros({100}));
    a.grad_norm = norm;
    a.max_norm = 1;
    cpu.run(a);
    return m;  // the clipped gradient, which p, divided by its size, would not show
  };
  EXPECT_TRUE(same_bits(stepped({3, 4}), stepped({5})));
  EXPECT_TRUE(same_bits(stepped({2, 0, 3, 6}), stepped({7})));
  EXPECT_TRUE(same_bits(stepped({2e30f, 0}), stepped({2e30f}))) << "its square is beyond fp32";
  EXPECT_FALSE(same_bits(stepped({3, 4}), stepped({4})));
  EXPECT_TRUE(same_bits(stepped({1, INFINITY}), stepped({NAN}))) << "both leave everything alone";
}

// All elements are equal, so that each is a draw of the same two roundings.
TEST_F(AdamWOnCpu, Bf16MomentsKeepTheMean) {
  const int64_t n = 1 << 16;
  const float gain1 = static_cast<float>(1 - 0.9), gain2 = static_cast<float>(1 - 0.999);
  const Tensor p = make.zeros({n}), g = filled(n, 0.7f), m = bf16_of(make.zeros({n})),
               v = bf16_of(make.zeros({n}));
  AdamW a = plain_step(p, g, m, v);
  cpu.run(a);
  const double exact_m = gain1 * 0.7f, exact_v = gain2 * 0.7f * 0.7f;
  const Tensor m32 = fp32_of(m), v32 = fp32_of(v);
  EXPECT_NEAR(mean(m32) / exact_m, 1, tolerance::of_mean_at_random(1, n));
  EXPECT_NEAR(mean(v32) / exact_v, 1, tolerance::of_mean_at_random(1, n));
  // What rounds m says nothing about what rounds v, nor about the next element's.
  const auto up = [](const Tensor& t, double exact, int64_t i) { return floats(t)[i % t.numel()] > exact; };
  double ups_m = 0, ups_v = 0, both = 0, neighbours = 0;
  for (int64_t i = 0; i < n; ++i) {
    ups_m += up(m32, exact_m, i), ups_v += up(v32, exact_v, i);
    both += up(m32, exact_m, i) && up(v32, exact_v, i);
    neighbours += up(m32, exact_m, i) && up(m32, exact_m, i + 1);
  }
  EXPECT_GT(std::min(ups_m, ups_v), 0.05 * n) << "too rare to test anything";
  EXPECT_LT(std::max(ups_m, ups_v), 0.95 * n) << "too common to test anything";
  const double chance = 5 * std::sqrt(static_cast<double>(n)) / 4;  // a covariance of bits is at most 1/4
  EXPECT_NEAR(both, ups_m * ups_v / n, chance);
  EXPECT_NEAR(neighbours, ups_m * ups_m / n, chance);

  const auto drawn = [&](uint64_t key, int64_t step) {
    const Tensor other = bf16_of(make.zeros({n}));
    AdamW b = plain_step(make.zeros({n}), g, other, bf16_of(make.zeros({n})));
    b.parts[0].random_key = key, b.step = step;
    cpu.run(b);
    return other;
  };
  EXPECT_TRUE(same_bits(drawn(0, a.step), m));
  EXPECT_FALSE(same_bits(drawn(1, a.step), m));
  EXPECT_FALSE(same_bits(drawn(0, a.step + 1), m));
}

TEST_F(AdamWOnCpu, MomentsThatBf16HoldsAreThoseOfFp32) {
  const int64_t n = 999;
  const Tensor p = make.normal({n}), q = make.copy_of(p), g = make.empty({n}), m = make.empty({n}),
               v = make.empty({n});
  for (int64_t i = 0; i < n; ++i) {  // halves of sums of small whole numbers
    floats(g)[i] = static_cast<float>(i % 11) - 5;
    floats(m)[i] = static_cast<float>(i % 7) - 3;
    floats(v)[i] = static_cast<float>(i % 5);
  }
  const Tensor m16 = bf16_of(m), v16 = bf16_of(v);
  AdamW a = plain_step(p, g, m, v), b = plain_step(q, g, m16, v16);
  a.beta1 = b.beta1 = a.beta2 = b.beta2 = 0.5;
  cpu.run(a);
  cpu.run(b);
  EXPECT_EQ(relative_error(fp32_of(m16), m), 0);
  EXPECT_EQ(relative_error(fp32_of(v16), v), 0);
  EXPECT_LE(relative_error(q, p), 4 * tolerance::kRoundingF32);  // one loop is vectorised, the other not
}

TEST_F(AdamWOnCpu, SlicesHaveTheBitsOfTheWhole) {
  const int64_t n = 1003;
  const Tensor g = make.normal({n}), start = make.normal({n});
  std::vector<Tensor> wholes, parts;
  for (const bool sliced : {false, true}) {
    const Tensor p = make.copy_of(start), m = bf16_of(make.zeros({n})), v = bf16_of(make.zeros({n}));
    const std::vector<int64_t> cuts =
        sliced ? std::vector<int64_t>{0, 8, 504, n} : std::vector<int64_t>{0, n};
    for (int64_t step = 1; step <= 3; ++step)
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const int64_t first = cuts[i], count = cuts[i + 1] - first;
        AdamW a = plain_step(p.rows(first, count), g.rows(first, count), m.rows(first, count),
                             v.rows(first, count));
        a.step = step, a.parts[0].random_key = 7, a.parts[0].first_element = first;
        cpu.run(a);
      }
    (sliced ? parts : wholes) = {p, m, v};
  }
  for (size_t i = 0; i < wholes.size(); ++i) EXPECT_TRUE(same_bits(wholes[i], parts[i])) << i;
}

// Several parts in one operation, of which the first elements decay
TEST_F(AdamWOnCpu, PartsHaveTheBitsOfEachAlone) {
  const int64_t n = 1003, decayed = 504;
  for (const bool bf16 : {false, true}) {
    std::vector<Tensor> together, apart;
    AdamW all = plain_step({}, {}, {}, {});
    all.parts.clear(), all.weight_decay = 0.1;
    for (uint64_t key = 0; key < 3; ++key) {
      const Tensor g = make.normal({n}), start = make.normal({n}), zeros = make.zeros({n});
      const auto moment = [&] { return bf16 ? bf16_of(zeros) : make.copy_of(zeros); };
      const Tensor p = make.copy_of(start), m = moment(), v = moment();
      all.parts.push_back({.param = p,
                           .low = {},
                           .grad = g,
                           .m = m,
                           .v = v,
                           .decayed = decayed,
                           .random_key = key,
                           .first_element = 16});
      together.insert(together.end(), {p, m, v});
      const Tensor q = make.copy_of(start), q_m = moment(), q_v = moment();
      for (const bool decays : {true, false}) {
        const int64_t first = decays ? 0 : decayed, count = decays ? decayed : n - decayed;
        AdamW a = plain_step(q.rows(first, count), g.rows(first, count), q_m.rows(first, count),
                             q_v.rows(first, count));
        a.weight_decay = decays ? 0.1 : 0;
        a.parts[0].random_key = key, a.parts[0].first_element = 16 + first;
        cpu.run(a);
      }
      apart.insert(apart.end(), {q, q_m, q_v});
    }
    cpu.run(all);
    for (size_t i = 0; i < together.size(); ++i) EXPECT_TRUE(same_bits(together[i], apart[i])) << bf16 << i;
  }
}

// A parabola x^2 / 2 from 0.1, where larger gradients have left v = 1: v decays by less than half a unit in
// the last place of bf16 a step.
TEST_F(AdamWOnCpu, Bf16MomentsTrackFp32WhereRoundingToNearestStalls) {
  const int64_t n = 4096, steps = 200;
  enum { kFp32, kAtRandom, kToNearest, kWays };
  Tensor x[kWays], v[kWays];
  for (const int way : {kFp32, kAtRandom, kToNearest}) {
    x[way] = filled(n, 0.1f);
    Tensor m = make.zeros({n});
    v[way] = filled(n, 1);
    if (way == kAtRandom) m = bf16_of(m), v[way] = bf16_of(v[way]);
    for (int64_t step = 0; step < steps; ++step) {
      AdamW a = plain_step(x[way], x[way], m, v[way]);
      a.step += step;
      cpu.run(a);
      if (way != kToNearest) continue;
      for (const Tensor& t : {m, v[way]})
        for (float& value : floats(t)) value = float_from_bf16(bf16_from_float(value));
    }
    if (way == kAtRandom) v[way] = fp32_of(v[way]);
  }
  const auto off = [&](const Tensor& got, const Tensor& want) {
    return std::abs(mean(got) / mean(want) - 1);
  };
  const double allowed = tolerance::of_mean_at_random(steps, n);
  EXPECT_LE(off(v[kAtRandom], v[kFp32]), allowed);
  // log x falls by rate / sqrt(v) a step, so its error is at most rate steps / 2 = 1 of v's; twice, for terms
  // of second order in a single element's error, 5%.
  EXPECT_LE(off(x[kAtRandom], x[kFp32]), 2 * allowed);
  EXPECT_EQ(mean(v[kToNearest]), 1) << "did not stall";
  EXPECT_GT(off(x[kToNearest], x[kFp32]), 8 * allowed);
}

TEST_F(AdamWOnCpu, RefusesWhatDoesNotFit) {
  const Tensor p = make.zeros({16}), half = bf16_of(p);
  const auto refusal = [&](const std::function<void(AdamW&)>& change) -> std::string {
    AdamW a = plain_step(p, p, p, p);
    change(a);
    try {
      cpu.run(a);
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  };
  EXPECT_TRUE(says(refusal([&](AdamW& a) { a.parts[0].param = half; }),
                   {"adamw: param ", "fp32 on cpu", "found bf16 [16]"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) { a.parts[0].v = half; }),
                   {"adamw: v ", "fp32 [16] on cpu", "found bf16 [16]"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) { a.parts[0].m = half; }),
                   {"adamw: v ", "bf16 [16] on cpu", "found fp32 [16]"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) { a.parts[0].grad = half; }),
                   {"adamw: grad ", "fp32 [16] on cpu", "found bf16 [16]"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) {
                     a.grad_norm = p.view({4, 4});
                   }),
                   {"adamw: grad_norm ", "fp32 [16] on cpu", "found fp32 [4, 4]"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) { a.parts[0].decayed = 12; }),
                   {"adamw: decayed ", "8 up to 16", "found 12"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) { a.parts[0].decayed = 24; }),
                   {"adamw: decayed ", "8 up to 16", "found 24"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) {
                     a.parts.push_back(a.parts[0]);
                     a.parts[1].m = a.parts[1].v = half;
                   }),
                   {"adamw: m ", "fp32 [16] on cpu", "found bf16 [16]"}));
  EXPECT_TRUE(says(refusal([&](AdamW& a) { a.parts[0].first_element = 4; }),
                   {"adamw: first_element ", "multiple of 8", "found 4"}));
}

// The sums are those of what the step then does, range by range: across blocks of the sums, across the end of
// what decays, with moments in both dtypes.
TEST_F(AdamWOnCpu, NormsAreThoseOfTheStepThatFollows) {
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    const int64_t n = 40'000, decayed = 8 * 3000;
    const Tensor p = make.normal({n}), g = make.normal({n}, 0.1), m = make.normal({n}, 0.01),
                 v = make.zeros({n}), q = make.normal({16}), norm = make.zeros({1});
    for (size_t i = 0; i < floats(v).size(); ++i) floats(v)[i] = floats(m)[i] * floats(m)[i];
    const bool bf16 = moments == DType::kBF16;
    AdamW step = plain_step(p, g, bf16 ? bf16_of(m) : m, bf16 ? bf16_of(v) : v);
    step.parts[0].decayed = decayed;
    const Tensor none = make.zeros({16});
    step.parts.push_back({.param = q,
                          .low = {},
                          .grad = none,
                          .m = bf16 ? bf16_of(none) : none,
                          .v = bf16 ? bf16_of(none) : make.zeros({16})});
    cpu.run(GlobalNorm{.tensors = {&g, 1}, .norm = norm});
    step.grad_norm = norm, step.max_norm = 0.5 * floats(norm)[0], step.weight_decay = 0.1;
    const std::vector<AdamWNorms::Range> ranges{{.part = 0, .first = 0, .count = 17},
                                                {.part = 0, .first = 24, .count = n - 24},
                                                {.part = 1, .first = 0, .count = 16},
                                                {.part = 0, .first = 8, .count = 0}};
    const Tensor sums = make.poisoned({4, 3}), before = make.copy_of(p);
    const AdamWNorms norms{.step = step, .ranges = ranges, .sums = sums};
    cpu.run(norms);
    ASSERT_TRUE(same_bits(p, before)) << "the norms are no step";
    cpu.run(step);
    for (size_t r = 0; r < 2; ++r) {
      double expected[3] = {};
      for (int64_t i = ranges[r].first; i < ranges[r].first + ranges[r].count; ++i) {
        const double gradient = 0.5 * floats(g)[i], change = floats(p)[i] - floats(before)[i];
        expected[0] += static_cast<double>(floats(before)[i]) * floats(before)[i];
        expected[1] += gradient * gradient, expected[2] += change * change;
      }
      for (size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(floats(sums)[3 * r + i], expected[i], tolerance::kCpuOperation * expected[i]) << i;
    }
    EXPECT_NEAR(floats(sums)[6], dot(q, q), tolerance::kCpuOperation * dot(q, q));
    for (size_t i = 7; i < 12; ++i) EXPECT_EQ(floats(sums)[i], 0) << i;
    const Tensor verdict = make.zeros({1});
    step.verdict = verdict;
    cpu.run(norms);
    EXPECT_EQ(dot(sums, sums), 0) << "a step that changes nothing";
  }
}

TEST_F(AdamWOnCpu, NormsRefuseWhatDoesNotFit) {
  const Tensor p = make.zeros({16}), sums = make.zeros({1, 3});
  const AdamW step = plain_step(p, p, p, p);
  const auto refusal = [&](AdamWNorms::Range range, const Tensor& to) -> std::string {
    try {
      cpu.run(AdamWNorms{.step = step, .ranges = {&range, 1}, .sums = to});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({.part = 0, .first = 8, .count = 8}, sums), "");
  EXPECT_TRUE(says(refusal({.part = 1, .first = 0, .count = 8}, sums), {"adamw norms", "part", "1"}));
  EXPECT_TRUE(says(refusal({.part = 0, .first = 4, .count = 8}, sums), {"multiple of 8", "4"}));
  EXPECT_TRUE(says(refusal({.part = 0, .first = 8, .count = 9}, sums), {"16 elements", "9"}));
  EXPECT_TRUE(says(refusal({.part = 0, .first = 0, .count = 8}, p), {"sums"}));
}

}  // namespace
}  // namespace tessera::testing

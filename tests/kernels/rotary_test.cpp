// The rotary embedding on the CPU, with and without QK norm and positions, against its formula in fp64.
#include "tests/documents.h"
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

constexpr float kRotaryEpsilon = 1e-6f, kRotaryOffset = 0.75f;  // the latter with weights alone

struct RotarySize {
  int64_t B, T, query_heads, key_heads, D, rotated = D;  // channels of a head

  int64_t heads() const { return query_heads + key_heads; }
  std::string to_string() const {
    return fmt::format("B {} T {} H {} K {} D {}, {} rotated", B, T, query_heads, key_heads, D, rotated);
  }
};
constexpr RotarySize kRotarySizes[] = {{1, 1, 1, 1, 2},       {2, 3, 3, 1, 6},      {3, 5, 4, 2, 10},
                                       {2, 7, 2, 2, 66},      {1, 5, 6, 2, 80},     {2, 9, 1, 1, 256},
                                       {1, 3, 2, 0, 4},       {1, 3, 0, 2, 4},      {2, 3, 3, 1, 6, 2},
                                       {3, 5, 4, 2, 10, 4},   {2, 7, 2, 2, 66, 34}, {1, 5, 6, 2, 80, 60},
                                       {2, 9, 1, 1, 256, 128}};

// Element i of head h of row n, in the heads of a tensor.
size_t at(const Heads& heads, int64_t n, int64_t h, int64_t i) {
  const int64_t all = heads.tensor.shape[2], D = heads.tensor.shape[3];
  return static_cast<size_t>(((n * all) + heads.first + h) * D + i);
}

struct RotaryFormula {
  Doubles y, rstd, dx, dq, dk;  // y and dx: [N, heads, D]
};

// Without weights: rstd, dq and dk are of no use.
RotaryFormula formula(const RotarySize& s, const Heads& x, const Heads& dy, const Tensor& angles,
                      const Tensor& q_weight, const Tensor& k_weight, const Tensor& positions) {
  const int64_t N = s.B * s.T, heads = s.heads(), D = s.D, pairs = s.rotated / 2;
  const auto size = [](int64_t count) { return static_cast<size_t>(count); };
  RotaryFormula f{Doubles(size(N * heads * D)), Doubles(size(N * heads)), Doubles(size(N * heads * D)),
                  Doubles(size(D)), Doubles(size(D))};
  for (int64_t n = 0; n < N; ++n)
    for (int64_t h = 0; h < heads; ++h) {
      const Tensor& weight = h < s.query_heads ? q_weight : k_weight;
      Doubles& dweight = h < s.query_heads ? f.dq : f.dk;
      const auto w = [&](int64_t i) {
        return weight ? static_cast<double>(kRotaryOffset + floats(weight)[size(i)]) : 1.0;
      };
      const auto xs = [&](int64_t i) { return static_cast<double>(floats(x.tensor)[at(x, n, h, i)]); };
      const auto d = [&](int64_t i) { return static_cast<double>(floats(dy.tensor)[at(dy, n, h, i)]); };
      const auto angle = [&](int64_t i, int64_t which) {
        const int64_t position = positions ? positions.as<int32_t>()[n] : n % s.T;
        return static_cast<double>(floats(angles)[size((position * pairs + i) * 2 + which)]);
      };
      double squares = 0;
      for (int64_t i = 0; i < D; ++i) squares += xs(i) * xs(i);
      const double rstd =
          weight ? 1 / std::sqrt(squares / static_cast<double>(D) + static_cast<double>(kRotaryEpsilon))
                 : 1.0;
      f.rstd[size(n * heads + h)] = rstd;
      const size_t first = size((n * heads + h) * D);
      Doubles g(size(D));  // the gradient before the rotation
      double sum_gh = 0;
      for (int64_t i = 0; i < D; ++i) {
        const bool turns = i < s.rotated;
        const int64_t pair = i % pairs, other = !turns ? i : i < pairs ? i + pairs : i - pairs;
        const double cos = turns ? angle(pair, 0) : 1, sin = !turns      ? 0
                                                             : i < pairs ? angle(pair, 1)
                                                                         : -angle(pair, 1);
        f.y[first + size(i)] = rstd * (xs(i) * w(i) * cos - xs(other) * w(other) * sin);
        g[size(i)] = d(i) * cos + d(other) * sin;
        dweight[size(i)] += g[size(i)] * xs(i) * rstd;
        sum_gh += g[size(i)] * w(i) * xs(i) * rstd;
      }
      for (int64_t i = 0; i < D; ++i)
        f.dx[first + size(i)] =
            rstd * (g[size(i)] * w(i) - (weight ? xs(i) * rstd * sum_gh / static_cast<double>(D) : 0));
    }
  return f;
}

struct Rotary : ::testing::Test {
  HostTensors make;
  CpuStream cpu;

  // As Llama has them, with two positions more than tokens. They are scaled by 1.2, as YaRN scales them, and
  // so that the transpose is not the inverse.
  Tensor angles_of(const RotarySize& s) {
    const int64_t pairs = s.rotated / 2;
    const Tensor angles = make.empty({s.T + 2, pairs, 2});
    for (int64_t t = 0; t < s.T + 2; ++t)
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle =
            static_cast<double>(t) * std::pow(1e4, -static_cast<double>(i) / static_cast<double>(pairs));
        float* pair = angles.as<float>() + (t * pairs + i) * 2;
        pair[0] = static_cast<float>(1.2 * std::cos(angle)),
        pair[1] = static_cast<float>(1.2 * std::sin(angle));
      }
    return angles;
  }

  void expect_finite_differences(const RotarySize& s);

  // None, and those of documents of one to three tokens
  std::vector<Tensor> kinds_of_positions(const RotarySize& s) {
    return {{}, positions_tensor(make, random_documents(5, s.B, s.T, 3))};
  }

  // The heads within a tensor that has `before` heads before them and two after; all others are NaN.
  Heads within(const RotarySize& s, int64_t before, bool filled) {
    const Heads heads{make.poisoned({s.B, s.T, before + s.heads() + 2, s.D}), before, s.heads()};
    const Tensor values = make.normal({s.B * s.T * s.heads() * s.D});
    for (int64_t i = 0; filled && i < values.numel(); ++i) {
      const int64_t row = i / (s.heads() * s.D), head = i / s.D % s.heads();
      floats(heads.tensor)[at(heads, row, head, i % s.D)] = floats(values)[static_cast<size_t>(i)];
    }
    return heads;
  }

  // The heads alone, and the rest still NaN.
  Tensor taken_out(const Heads& heads) {
    const Tensor& t = heads.tensor;
    const int64_t N = t.shape[0] * t.shape[1], D = t.shape[3];
    const Tensor out = make.empty({N, heads.count, D});
    for (int64_t n = 0; n < N; ++n)
      for (int64_t h = 0; h < t.shape[2]; ++h)
        for (int64_t i = 0; i < D; ++i) {
          const float value = t.as<float>()[(n * t.shape[2] + h) * D + i];
          const int64_t own = h - heads.first;
          if (own >= 0 && own < heads.count)
            out.as<float>()[(n * heads.count + own) * D + i] = value;
          else
            EXPECT_TRUE(std::isnan(value)) << "head " << h << " is another's and was written";
        }
    return out;
  }
};

TEST_F(Rotary, IsItsFormula) {
  for (const RotarySize& s : kRotarySizes)
    for (const Tensor& positions : kinds_of_positions(s)) {
      SCOPED_TRACE(s.to_string() + (positions ? ", positions" : ""));
      const Tensor angles = angles_of(s);
      const Heads x = within(s, 1, true), dy = within(s, 3, true);
      const RotaryFormula want = formula(s, x, dy, angles, {}, {}, positions);
      const Heads y = within(s, 0, false), dx = within(s, 2, false);
      cpu.run(RotaryForward{
          .x = x, .y = y, .query_heads = s.query_heads, .angles = angles, .positions = positions});
      cpu.run(RotaryBackward{
          .dy = dy, .dx = dx, .query_heads = s.query_heads, .angles = angles, .positions = positions});
      const Tensor ys = taken_out(y), dxs = taken_out(dx);
      expect_formula(ys, want.y, "y");
      expect_formula(dxs, want.dx, "dx");
      cpu.run(RotaryForward{
          .x = x, .y = x, .query_heads = s.query_heads, .angles = angles, .positions = positions});
      cpu.run(RotaryBackward{
          .dy = dy, .dx = dy, .query_heads = s.query_heads, .angles = angles, .positions = positions});
      expect_same_bits(taken_out(x), ys, "y in place");
      expect_same_bits(taken_out(dy), dxs, "dx in place");
    }
}

TEST_F(Rotary, WithQkNormIsItsFormula) {
  for (const RotarySize& s : kRotarySizes)
    for (const Tensor& positions : kinds_of_positions(s)) {
      SCOPED_TRACE(s.to_string() + (positions ? ", positions" : ""));
      const Tensor angles = angles_of(s), q_weight = make.normal({s.D}, 0.5, 1),
                   k_weight = make.normal({s.D}, 0.5, 1), rstd = make.poisoned({s.B * s.T, s.heads()});
      const Heads x = within(s, 1, true), dy = within(s, 3, true), y = within(s, 0, false);
      const RotaryFormula want = formula(s, x, dy, angles, q_weight, k_weight, positions);
      cpu.run(RotaryForward{.x = x,
                            .y = y,
                            .query_heads = s.query_heads,
                            .angles = angles,
                            .q_weight = q_weight,
                            .k_weight = k_weight,
                            .epsilon = kRotaryEpsilon,
                            .offset = kRotaryOffset,
                            .rstd = rstd,
                            .positions = positions});
      expect_formula(taken_out(y), want.y, "y");
      expect_formula(rstd, want.rstd, "rstd");

      const Tensor before = make.normal({s.D});
      Doubles dq = want.dq, dk = want.dk;
      for (size_t i = 0; i < dq.size(); ++i)
        dq[i] += static_cast<double>(floats(before)[i]), dk[i] += static_cast<double>(floats(before)[i]);
      for (const bool in_place : {false, true}) {
        const Heads dx = in_place ? dy : within(s, 2, false);
        const Tensor dq_weight = make.copy_of(before), dk_weight = make.copy_of(before);
        cpu.run(RotaryBackward{.dy = dy,
                               .dx = dx,
                               .query_heads = s.query_heads,
                               .angles = angles,
                               .x = x,
                               .q_weight = q_weight,
                               .k_weight = k_weight,
                               .rstd = rstd,
                               .offset = kRotaryOffset,
                               .dq_weight = dq_weight,
                               .dk_weight = dk_weight,
                               .positions = positions});
        expect_formula(taken_out(dx), want.dx, "dx");
        expect_formula(dq_weight, dq, "dq_weight");
        expect_formula(dk_weight, dk, "dk_weight");
      }
    }
}

void Rotary::expect_finite_differences(const RotarySize& s) {
  const Tensor angles = angles_of(s), x = make.normal({s.B, s.T, s.heads(), s.D}), y = make.poisoned(x.shape),
               dy = make.normal(x.shape), rstd = make.poisoned({6, s.heads()});
  const auto all = [&](const Tensor& t) { return Heads{t, 0, s.heads()}; };
  for (const bool normed : {false, true}) {
    SCOPED_TRACE(normed);
    const auto only = [&](const Tensor& t) { return normed ? t : Tensor{}; };
    const Tensor q_weight = make.normal({s.D}), k_weight = make.normal({s.D}), dx = make.poisoned(x.shape),
                 dq_weight = make.zeros({s.D}), dk_weight = make.zeros({s.D});
    const auto loss = [&] {
      cpu.run(RotaryForward{.x = all(x),
                            .y = all(y),
                            .query_heads = s.query_heads,
                            .angles = angles,
                            .q_weight = only(q_weight),
                            .k_weight = only(k_weight),
                            .epsilon = kRotaryEpsilon,
                            .offset = kRotaryOffset,
                            .rstd = only(rstd)});
      return dot(y, dy);
    };
    loss();
    cpu.run(RotaryBackward{.dy = all(dy),
                           .dx = all(dx),
                           .query_heads = s.query_heads,
                           .angles = angles,
                           .x = normed ? all(x) : Heads{},
                           .q_weight = only(q_weight),
                           .k_weight = only(k_weight),
                           .rstd = only(rstd),
                           .offset = kRotaryOffset,
                           .dq_weight = only(dq_weight),
                           .dk_weight = only(dk_weight)});
    expect_gradient(x, dx, loss);
    if (!normed) continue;
    expect_gradient(q_weight, dq_weight, loss);
    expect_gradient(k_weight, dk_weight, loss);
  }
}

TEST_F(Rotary, MatchesFiniteDifferences) {
  expect_finite_differences({2, 3, 2, 1, 6});
  expect_finite_differences({2, 3, 2, 1, 10, 4});
}

// What the embedding is for: a score depends on how far apart query and key are, not on where they are.
TEST_F(Rotary, ScoresDependOnTheDistanceAlone) {
  const RotarySize s{1, 12, 1, 1, 8, 6};
  const Tensor angles = angles_of(s), x = make.empty({1, s.T, 2, s.D}), row = make.normal({2 * s.D});
  for (int64_t t = 0; t < s.T; ++t) std::memcpy(x.as<float>() + t * 2 * s.D, row.data, row.bytes());
  const Heads heads{x, 0, 2};
  cpu.run(RotaryForward{.x = heads, .y = heads, .query_heads = 1, .angles = angles});
  const auto score = [&](int64_t query, int64_t key) {
    double sum = 0;
    for (int64_t i = 0; i < s.D; ++i)
      sum += static_cast<double>(floats(x)[at(heads, query, 0, i)]) * floats(x)[at(heads, key, 1, i)];
    return sum;
  };
  for (int64_t distance = 0; distance < 4; ++distance)
    for (int64_t key = 1; key + distance < s.T; ++key)
      EXPECT_NEAR(score(key + distance, key), score(distance, 0), 1e-5) << distance << " from " << key;
  EXPECT_GT(std::abs(score(1, 0) - score(0, 0)), 1e-2);
}

TEST_F(Rotary, RefusesWhatDoesNotFit) {
  const RotarySize s{2, 3, 2, 1, 4};
  const Tensor t = make.normal({2, 3, 5, 4}), other = make.normal({2, 3, 3, 4}), angles = angles_of(s),
               weight = make.normal({4}), rstd = make.zeros({6, 3}), odd = make.normal({2, 3, 3, 5});
  const auto forward = [&](Heads x, Heads y, const Tensor& table, int64_t query_heads = 2) {
    return refusal_of(cpu, RotaryForward{.x = x, .y = y, .query_heads = query_heads, .angles = table});
  };
  const Heads x{t, 0, 3}, y{other, 0, 3};
  EXPECT_TRUE(says(forward({t, 3, 3}, y, angles),
                   {"rotary forward: x ", "3 heads of fp32 [2, 3, 5, 4]", "found 3 from head 3"}));
  EXPECT_TRUE(says(forward(x, {other, 0, 2}, angles),
                   {"rotary forward: y ", "3 heads of fp32 [2, 3, 3, 4]", "found 2 from head 0"}));
  EXPECT_TRUE(says(forward(x, {t, 1, 3}, angles), {"rotary forward: y ", "x itself", "heads"}));
  EXPECT_TRUE(
      says(forward({odd, 0, 3}, {odd, 0, 3}, angles), {"rotary forward: ", "head dim", "even, found 5"}));
  EXPECT_TRUE(says(forward(x, y, angles, 4), {"rotary forward: query_heads ", "0 to 3", "found 4"}));
  EXPECT_TRUE(says(forward(x, y, angles.rows(0, 2)), {"rotary forward: angles of 2 positions", "3 tokens"}));
  EXPECT_TRUE(
      says(forward(x, y, weight), {"rotary forward: angles ", "fp32 [4, 2, 2] on cpu", "found fp32 [4]"}));

  const auto normed = [&](Heads out, const Tensor& k_weight, float epsilon) {
    return refusal_of(cpu, RotaryForward{.x = x,
                                         .y = out,
                                         .query_heads = 2,
                                         .angles = angles,
                                         .q_weight = weight,
                                         .k_weight = k_weight,
                                         .epsilon = epsilon,
                                         .rstd = rstd});
  };
  EXPECT_TRUE(says(normed(x, weight, kRotaryEpsilon), {"rotary forward: ", "weights", "y may not be x"}));
  EXPECT_TRUE(says(normed(y, weight, 0), {"rotary forward: epsilon ", "above 0", "found 0"}));
  EXPECT_TRUE(says(normed(y, {}, kRotaryEpsilon), {"rotary forward: k_weight ", "fp32 [4] on cpu"}));

  const auto backward = [&](Heads dx, Heads of_forward, const Tensor& dk_weight) {
    return refusal_of(cpu, RotaryBackward{.dy = y,
                                          .dx = dx,
                                          .query_heads = 2,
                                          .angles = angles,
                                          .x = of_forward,
                                          .q_weight = weight,
                                          .k_weight = weight,
                                          .rstd = rstd,
                                          .dq_weight = weight,
                                          .dk_weight = dk_weight});
  };
  EXPECT_TRUE(says(backward(x, x, weight), {"rotary backward: dx ", "dy itself", "x is read"}));
  EXPECT_TRUE(says(backward(y, {}, weight), {"rotary backward: x ", "fp32 [2, 3, 3, 4] on cpu"}));
  EXPECT_TRUE(says(backward(y, x, {}), {"rotary backward: dk_weight ", "fp32 [4] on cpu"}));
}

}  // namespace
}  // namespace tessera::testing

// The cache of keys and values, and attention of one new token over it, on the CPU against its formula in
// fp64.
#include <numeric>

#include "tests/kernels/formula.h"
#include "tests/random_blocks.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct Size {
  int64_t B, H, K, D, capacity;
  std::vector<int32_t> starts;  // of each sequence; -1: idle

  std::string to_string() const {
    return fmt::format("B {} H {} K {} D {} capacity {}", B, H, K, D, capacity);
  }
};
// A cache of one token and one that is full, tiles that are whole, begun and just begun, groups of one head
// to more than a task takes, head dims of no vector length
const std::vector<Size>& sizes() {
  static const std::vector<Size> all{{1, 1, 1, 1, 1, {0}},
                                     {1, 2, 2, 64, 300, {127}},
                                     {1, 2, 1, 64, 300, {128}},
                                     {3, 4, 2, 10, 257, {-1, 256, 0}},
                                     {2, 9, 1, 66, 40, {39, 17}},
                                     {2, 17, 1, 80, 131, {130, -1}},
                                     {4, 6, 3, 7, 9, {-1, -1, -1, -1}},
                                     {2, 32, 8, 128, 1000, {999, 512}},
                                     {1, 3, 3, 256, 600, {599}}};
  return all;
}

Tensor starts_of(HostTensors& make, const std::vector<int32_t>& starts) {
  const Tensor t = make.empty({std::ssize(starts)}, DType::kI32);
  std::copy(starts.begin(), starts.end(), t.as<int32_t>());
  return t;
}

// Rows 0 to start of each sequence's cache; the others are NaN, as nothing may read them.
Tensor cache_of(HostTensors& make, const Size& s) {
  const Tensor cache = make.poisoned({s.B, s.capacity, s.K, s.D}), values = make.normal(cache.shape);
  const int64_t row = s.K * s.D;
  for (int64_t b = 0; b < s.B; ++b) {
    const int64_t first = b * s.capacity * row, count = (s.starts[static_cast<size_t>(b)] + 1) * row;
    std::copy_n(values.as<float>() + first, count, cache.as<float>() + first);
  }
  return cache;
}

DecodePlan plan_of(const Size& s, float scale) {
  DecodePlan plan =
      choose_decode({.batch = s.B, .heads = s.H, .head_dim = s.D, .kv_heads = s.K, .capacity = s.capacity},
                    DType::kF32, {});
  plan.scale = scale;
  return plan;
}

// y of query head h of sequence b, straight from the definition
Doubles formula(const Size& s, double scale, const Heads& q, const Tensor& k, const Tensor& v) {
  Doubles y(static_cast<size_t>(s.B * s.H * s.D));
  const auto at = [](const Tensor& t, int64_t i) {
    return static_cast<double>(floats(t)[static_cast<size_t>(i)]);
  };
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t h = 0; h < s.H; ++h) {
      const int64_t kv = h / (s.H / s.K), keys = s.starts[static_cast<size_t>(b)] + 1;
      const auto row = [&](int64_t j) { return ((b * s.capacity + j) * s.K + kv) * s.D; };
      const int64_t query = (b * q.tensor.shape[2] + q.first + h) * s.D;
      Doubles p(static_cast<size_t>(keys));
      double most = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double score = 0;
        for (int64_t d = 0; d < s.D; ++d) score += at(q.tensor, query + d) * at(k, row(j) + d);
        p[static_cast<size_t>(j)] = scale * score;
        most = std::max(most, scale * score);
      }
      for (double& x : p) sum += x = std::exp(x - most);
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t d = 0; d < s.D; ++d)
          y[static_cast<size_t>((b * s.H + h) * s.D + d)] +=
              p[static_cast<size_t>(j)] / sum * at(v, row(j) + d);
    }
  return y;
}

// Queries are heads of packed qkv. The scale is not that of D: a model may say otherwise.
TEST(DecodeAttentionOnCpu, IsItsFormula) {
  CpuStream cpu;
  for (const Size& s : sizes())
    for (const float scale : {1 / std::sqrt(static_cast<float>(s.D)), 0.3f}) {
      SCOPED_TRACE(fmt::format("{}, scale {}", s.to_string(), scale));
      HostTensors make;
      const Heads q{make.normal({s.B, 1, s.H + 2 * s.K, s.D}), 0, s.H};
      const Tensor k = cache_of(make, s), v = cache_of(make, s), y = make.poisoned({s.B, 1, s.H, s.D});
      const DecodePlan plan = plan_of(s, scale);
      cpu.run(DecodeAttention{
          .plan = plan, .q = q, .k_cache = k, .v_cache = v, .starts = starts_of(make, s.starts), .y = y});
      expect_formula(y, formula(s, static_cast<double>(scale), q, k, v), "y", tolerance::kCpuAttention);
    }
}

// Of one sequence, all of whose tokens are queries over its cache, with sparse blocks: what attention of the
// whole sequence gives.
TEST(DecodeAttentionOnCpu, WithSparseBlocksIsAForward) {
  CpuStream cpu;
  uint32_t seed = 0;
  for (const int64_t T : {1, 17, 130, 300})
    for (const int64_t size : {1, 16, 48, 128, 256}) {
      SCOPED_TRACE(fmt::format("T {}, blocks of {}", T, size));
      HostTensors make;
      const BlockLists lists =
          test::lists_of(test::random_blocks({.size = size, .seed = ++seed}, T, T), T, T);
      AttentionShape s{1, T, 4, 10, {/*is_causal=*/true}, 2};
      s.mask.blocks = lists.shape();
      const Tensor blocks = make.empty({lists.shape().numbers()}, DType::kI32);
      std::ranges::copy(lists.numbers(), blocks.as<int32_t>());
      const Tensor q = make.normal({1, T, 4, 10}), k = make.normal({1, T, 2, 10}),
                   v = make.normal({1, T, 2, 10}), want = make.poisoned(q.shape), y = make.poisoned(q.shape);
      const AttentionPlan forward =
          choose_attention({.kind = AttentionKind::kNaive, .shape = s, .dtype = DType::kF32, .device = {}});
      cpu.run(AttentionForward{.plan = forward,
                               .q = all_heads(q),
                               .k = all_heads(k),
                               .v = all_heads(v),
                               .y = all_heads(want),
                               .saved = make.poisoned(forward.saved_shape),
                               .tables = {.blocks = blocks}});
      const DecodePlan plan = choose_decode({.batch = T,
                                             .heads = 4,
                                             .head_dim = 10,
                                             .kv_heads = 2,
                                             .capacity = T,
                                             .one_cache = true,
                                             .blocks = lists.shape()},
                                            DType::kF32, {});
      std::vector<int32_t> starts(static_cast<size_t>(T));
      std::iota(starts.begin(), starts.end(), 0);
      cpu.run(DecodeAttention{.plan = plan,
                              .q = all_heads(q.view({T, 1, 4, 10})),
                              .k_cache = k,
                              .v_cache = v,
                              .starts = starts_of(make, starts),
                              .y = y.view({T, 1, 4, 10}),
                              .blocks = blocks});
      EXPECT_LE(relative_error(y, want), tolerance::kCpuAttention);
    }
}

// Scores far apart and far from 0: a softmax of them needs the maximum of all tiles.
TEST(DecodeAttentionOnCpu, TakesScoresOfHundreds) {
  CpuStream cpu;
  HostTensors make;
  const Size s{1, 2, 1, 16, 700, {699}};
  const Heads q{make.normal({1, 1, s.H, s.D}, 20), 0, s.H};
  const Tensor k = cache_of(make, s), v = cache_of(make, s), y = make.poisoned({1, 1, s.H, s.D});
  const DecodePlan plan = plan_of(s, 1);
  cpu.run(DecodeAttention{
      .plan = plan, .q = q, .k_cache = k, .v_cache = v, .starts = starts_of(make, s.starts), .y = y});
  // exp() multiplies the error of a score, at most 400 x 16 roundings of its terms
  expect_formula(y, formula(s, 1, q, k, v), "y", 400 * 16 * tolerance::kRoundingF32);
}

TEST(DecodeAttentionOnCpu, RefusesATokenOutsideTheCache) {
  CpuStream cpu;
  HostTensors make;
  const Size s{2, 2, 1, 8, 4, {3, 3}};
  const Tensor k = cache_of(make, s), v = cache_of(make, s), y = make.poisoned({2, 1, 2, 8});
  const DecodePlan plan = plan_of(s, 1);
  const std::string refusal = refusal_of(cpu, DecodeAttention{.plan = plan,
                                                              .q = {make.normal({2, 1, 2, 8}), 0, 2},
                                                              .k_cache = k,
                                                              .v_cache = v,
                                                              .starts = starts_of(make, {3, 4}),
                                                              .y = y});
  EXPECT_TRUE(says(refusal, {"decode attention: sequence 1 ", "token at 4", "room for 4"}));
}

// A ring has a key in every row from its last one on, whatever the order.
TEST(DecodeAttentionOnCpu, ReadsEveryRowOfARingThatIsFull) {
  CpuStream cpu;
  HostTensors make;
  const Size full{3, 4, 2, 10, 5, {2, 4, 4}};
  const Heads q{make.normal({3, 1, 4, 10}), 0, 4};
  const Tensor k = cache_of(make, full), v = cache_of(make, full), y = make.poisoned({3, 1, 4, 10});
  DecodePlan plan = plan_of(full, 0.3f);
  plan.shape.ring = true;
  cpu.run(DecodeAttention{
      .plan = plan, .q = q, .k_cache = k, .v_cache = v, .starts = starts_of(make, {2, 4, 23}), .y = y});
  expect_formula(y, formula(full, 0.3f, q, k, v), "y", tolerance::kCpuAttention);
}

// New rows, those of other tokens, and idle sequences: to the bit
TEST(CacheAppendOnCpu, WritesTheNewRowsAlone) {
  CpuStream cpu;
  for (const int64_t T : {1, 3}) {
    HostTensors make;
    const int64_t B = 4, K = 3, D = 6, capacity = 7, row = K * D;
    const std::vector<int32_t> starts{0, static_cast<int32_t>(capacity - T), -1, 2};
    // Keys of a tensor of their own, as QK norm makes them, and values among packed heads
    const Heads k{make.normal({B, T, 2 + K, D}), 2, K}, v{make.normal({B, T, 2 + 2 * K, D}), 2 + K, K};
    const Tensor k_cache = make.normal({B, capacity, K, D}), v_cache = make.normal({B, capacity, K, D});
    const std::pair<Heads, Tensor> both[] = {{k, make.copy_of(k_cache)}, {v, make.copy_of(v_cache)}};
    for (const auto& [heads, wanted] : both)
      for (int64_t b = 0; b < B; ++b)
        for (int64_t t = 0; t < T && starts[static_cast<size_t>(b)] >= 0; ++t)
          std::copy_n(heads.tensor.as<float>() + ((b * T + t) * heads.tensor.shape[2] + heads.first) * D, row,
                      wanted.as<float>() + (b * capacity + starts[static_cast<size_t>(b)] + t) * row);
    cpu.run(CacheAppend{
        .k = k, .v = v, .starts = starts_of(make, starts), .k_cache = k_cache, .v_cache = v_cache});
    expect_same_bits(k_cache, both[0].second, "k");
    expect_same_bits(v_cache, both[1].second, "v");
  }
}

TEST(CacheAppendOnCpu, RefusesWhatTheCacheHasNoRoomFor) {
  CpuStream cpu;
  HostTensors make;
  const Tensor cache = make.zeros({1, 4, 1, 2}), other = make.zeros({1, 4, 1, 2});
  const auto refusal = [&](int64_t tokens, int32_t start) {
    const Heads heads{make.normal({1, tokens, 1, 2}), 0, 1};
    return refusal_of(
        cpu,
        CacheAppend{
            .k = heads, .v = heads, .starts = starts_of(make, {start}), .k_cache = cache, .v_cache = other});
  };
  EXPECT_TRUE(says(refusal(5, 0), {"cache append: 5 new tokens", "4"}));
  EXPECT_TRUE(says(refusal(2, 3), {"cache append: 2 tokens after 3", "4"}));
  EXPECT_EQ(refusal(1, 3), "was not refused");
}

// Token 23 of a ring of seven rows is in row 2.
TEST(CacheAppendOnCpu, GoesRoundARing) {
  CpuStream cpu;
  HostTensors make;
  const Tensor k = make.normal({3, 1, 2, 6}), v = make.normal({3, 1, 2, 6}),
               k_cache = make.normal({3, 7, 2, 6}), v_cache = make.normal({3, 7, 2, 6}),
               k_before = make.copy_of(k_cache);
  CacheAppend append{.k = all_heads(k),
                     .v = all_heads(v),
                     .starts = starts_of(make, {6, -1, 23}),
                     .k_cache = k_cache,
                     .v_cache = v_cache,
                     .ring = true};
  cpu.run(append);
  const auto row = [](const Tensor& t, int64_t b, int64_t n) {
    return t.as<float>() + (b * t.shape[1] + n) * 12;
  };
  for (int64_t b = 0; b < 3; ++b)
    for (int64_t n = 0; n < 7; ++n) {
      const bool is_new = (b == 0 && n == 6) || (b == 2 && n == 2);
      EXPECT_EQ(std::memcmp(row(k_cache, b, n), is_new ? row(k, b, 0) : row(k_before, b, n), 48), 0)
          << b << n;
      if (is_new) {
        EXPECT_EQ(std::memcmp(row(v_cache, b, n), row(v, b, 0), 48), 0);
      }
    }
  append.k = all_heads(make.normal({3, 2, 2, 6})), append.v = all_heads(make.normal({3, 2, 2, 6}));
  EXPECT_TRUE(says(refusal_of(cpu, append), {"cache append", "ring", "one new token", "2"}));
}

}  // namespace
}  // namespace tessera::testing

// Small caches on the CPU: where a group has what, how far a code may be from its number, and attention
// against its formula in fp64 over the numbers that the codes stand for.
#include "kernels/attention/small_cache.h"

#include <set>

#include "kernels/base/bf16.h"
#include "kernels/base/fp8.h"
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

constexpr CacheDtype kSmall[] = {CacheDtype::kFp8, CacheDtype::kInt8, CacheDtype::kInt4};
constexpr int kTokens = CacheFormat::kGroupTokens;

TEST(SmallCache, EveryCodeHasAPlaceOfItsOwn) {
  for (const CacheDtype dtype : kSmall)
    for (const int D : {8, 16, 40, 64, 80, 128, 200, 256}) {
      const CacheFormat format{.dtype = dtype, .head_dim = D};
      SCOPED_TRACE(fmt::format("{}, heads of {}", name_of(dtype), D));
      std::set<int> bits;  // the first one of each code and scale, counted from the begin of the group
      const auto take = [&](int word, int shift, int count) {
        EXPECT_TRUE(word >= 0 && word < format.group_words() && shift + count <= 32);
        for (int i = 0; i < count; ++i) EXPECT_TRUE(bits.insert(word * 32 + shift + i).second);
      };
      for (int channel = 0; channel < format.steps() * 16; ++channel)
        for (const int half :
             {CacheFormat::key_step(channel), CacheFormat::key_step(channel) + CacheFormat::kKeyZero})
          take(half / 2, half % 2 * 16, 16);
      for (int token = 0; token < kTokens; ++token) {
        for (int part = 0; part < format.parts(); ++part) take(format.value_scale(token, part), 0, 32);
        for (int channel = 0; channel < format.steps() * 16; ++channel) {
          const CodePlace key = format.place_of_key(token, channel),
                          value = format.place_of_value(token, channel);
          take(key.word, key.shift, format.bits());
          take(value.word, value.shift, format.bits());
          const int in_tile = token % format.tile_tokens();
          const CodeOf of = format.code_of(
              (key.word - format.tile_begin(token / format.tile_tokens()) - format.value_scale_words()) % 128,
              key.shift / format.bits());
          EXPECT_TRUE(of.sub == in_tile / 16 && of.row == in_tile % 16 && of.column == channel % 16);
        }
      }
      EXPECT_EQ(std::ssize(bits), format.group_words() * 32) << "a hole";
    }
}

TEST(SmallCache, KnowsItsBytes) {
  // A group of 64 tokens of heads of 128: 2 x 64 x 128 codes; z and s of 128 channels; z and s of 64 tokens,
  // of 4 bits for 64 channels and of 8 bits for 128
  EXPECT_EQ((CacheFormat{CacheDtype::kInt4, 128}.group_words() * 4), 8192 + 512 + 512);
  EXPECT_EQ((CacheFormat{CacheDtype::kInt8, 128}.group_words() * 4), 16384 + 512 + 256);
  EXPECT_EQ((CacheFormat{CacheDtype::kFp8, 128}.group_words() * 4), 16384 + 512 + 256);
  for (const int64_t length : {1, 64, 65, 128}) EXPECT_EQ(CacheFormat::groups_of(length), 0);
  EXPECT_EQ(CacheFormat::groups_of(129), 1);
  EXPECT_EQ(CacheFormat::groups_of(192), 1);
  EXPECT_EQ(CacheFormat::groups_of(193), 2);
  // 65,536 tokens: all but 128 in groups
  EXPECT_EQ((CacheFormat{CacheDtype::kInt4, 128}.bytes_of(65536, 2)), 1022 * 9216 + 128 * 2 * 128 * 2);
}

TEST(SmallCache, NumbersOfE4m3AreThoseOfTheFormat) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN, which no number becomes
    const float x = float_from_fp8(static_cast<uint8_t>(code), DType::kE4M3);
    EXPECT_EQ(cache_format::of_e4m3(code), x);
    EXPECT_EQ(cache_format::e4m3_of(x), code);
  }
  for (int i = -4480; i <= 4480; ++i) {
    const float x = static_cast<float>(i) * 0.1f;
    EXPECT_EQ(cache_format::e4m3_of(x), fp8_from_float(x, DType::kE4M3)) << x;
    EXPECT_EQ(cache_format::e4m3_of(x / 4096), fp8_from_float(x / 4096, DType::kE4M3)) << x / 4096;
  }
}

// The error is half the distance of two codes. s is the spread over the number of steps, and more by the
// rounding of z, 2^-9, where that is far from 0, and by its own, 2^-7.
TEST(SmallCache, AnErrorIsAtMostHalfAStep) {
  HostTensors make;
  for (const CacheDtype dtype : kSmall) {
    const CacheFormat format{.dtype = dtype, .head_dim = 64};
    const bool fp8 = dtype == CacheDtype::kFp8;
    for (const float offset : {0.0f, 3.0f, -700.0f})
      for (const float size : {1e-6f, 1.0f, 50.0f}) {
        SCOPED_TRACE(fmt::format("{}, {} times numbers around {}", name_of(dtype), size, offset));
        const std::span<float> x = floats(make.normal({100}));
        for (float& one : x) one = offset + size * one;
        const auto [least, most] = std::ranges::minmax(x);
        const CacheScale scale = format.scale_of(least, most, true);
        const float s = float_from_bf16(scale.step), z = float_from_bf16(scale.zero);
        const double steps = static_cast<double>(format.below()) + static_cast<double>(format.above());
        EXPECT_LE(s, ((most - least) / steps + std::abs(z) * 0x1p-9 / static_cast<double>(format.above())) *
                             (1 + 0x1p-7) * (1 + 1e-5) +
                         0x1p-99);
        for (const float one : x) {
          const float n = format.number(format.code(one, scale));
          const double error = std::abs(double{z} + double{s} * double{n} - double{one});
          const double half =
              fp8 ? std::max(double{s} * std::abs(double{n}) / 16, double{s} * 0x1p-10) : double{s} / 2;
          EXPECT_LE(error, half + 1e-6 * std::abs(double{one}));
        }
      }
  }
}

TEST(SmallCache, EqualNumbersAndZerosHaveTheirOwnCode) {
  for (const CacheDtype dtype : kSmall)
    for (const float x : {0.0f, 1.5f, -300.0f}) {
      const CacheFormat format{.dtype = dtype, .head_dim = 64};
      const CacheScale scale = format.scale_of(x, x, true);
      EXPECT_EQ(float_from_bf16(scale.zero), x);
      EXPECT_EQ(format.number(format.code(x, scale)), 0);
    }
}

struct SmallSize {
  CacheDtype dtype;
  int64_t B, H, K, D;
  std::vector<int32_t> starts;

  int64_t capacity() const { return *std::ranges::max_element(starts) + 3; }
  CacheFormat format() const { return {.dtype = dtype, .head_dim = static_cast<int>(D)}; }
  std::string to_string() const {
    return fmt::format("{} B {} H {} K {} D {} first start {}", name_of(dtype), B, H, K, D, starts[0]);
  }
};

// A cache whose texts were all read at once: groups of codes, and rings of the newest tokens
struct SmallCacheOf {
  Tensor k, v;                    // [B, capacity, K, D], as they were
  Tensor wide_k, wide_v;          // what the cache has of them
  Tensor ring_k, ring_v, groups;  // the cache
  Tensor starts;

  SmallCacheOf(HostTensors& make, CpuStream& cpu, const SmallSize& s, float offset = 0) {
    const int64_t capacity = s.capacity(), G = CacheFormat::groups_of(capacity), row = s.K * s.D;
    k = make.normal({s.B, capacity, s.K, s.D}), v = make.normal(k.shape);
    for (int64_t i = 0; i < k.numel(); ++i)
      if (i % s.D % 16 == 3) k.as<float>()[i] += offset * (i % s.D < 16 ? 1.0f : -1.0f);
    wide_k = make.poisoned(k.shape), wide_v = make.poisoned(k.shape);
    ring_k = make.poisoned({s.B, CacheFormat::kNewestTokens, s.K, s.D}), ring_v = make.poisoned(ring_k.shape);
    groups = make.empty({s.B, s.K, G, s.format().group_words()}, DType::kI32);
    starts = make.empty({s.B}, DType::kI32);
    std::ranges::copy(s.starts, starts.as<int32_t>());
    for (int64_t b = 0; b < s.B; ++b) {
      const int64_t length = s.starts[static_cast<size_t>(b)] + 1, full = CacheFormat::groups_of(length);
      const auto text = [&](const Tensor& all) {
        return all.view({s.B, capacity * row}).rows(b, 1).view({capacity, s.K, s.D});
      };
      const Tensor own = groups.view({s.B, s.K * G * groups.shape[3]}).rows(b, 1);
      cpu.run(QuantiseCache{.format = s.format(),
                            .k = text(k).view({1, 1, capacity, s.K, s.D}),
                            .v = text(v).view({1, 1, capacity, s.K, s.D}),
                            .groups = own.view({1, 1, s.K, G, groups.shape[3]}),
                            .count = full});
      cpu.run(DequantiseCache{.format = s.format(),
                              .groups = own.view({s.K, G, groups.shape[3]}),
                              .count = full,
                              .k = text(wide_k),
                              .v = text(wide_v)});
      for (int64_t t = full * kTokens; t < length; ++t)
        for (const auto& [from, wide, ring] :
             {std::tuple{k, wide_k, ring_k}, std::tuple{v, wide_v, ring_v}}) {
          const float* one = text(from).as<float>() + t * row;
          std::copy_n(one, row, text(wide).as<float>() + t * row);
          std::copy_n(
              one, row,
              ring.as<float>() + (b * CacheFormat::kNewestTokens + t % CacheFormat::kNewestTokens) * row);
        }
    }
  }
};

DecodePlan plan_of(const SmallSize& s) {
  return choose_decode({.batch = s.B,
                        .heads = s.H,
                        .head_dim = s.D,
                        .kv_heads = s.K,
                        .capacity = s.capacity(),
                        .cache = s.dtype},
                       DType::kF32, {});
}

// y of all query heads from the definition, over keys and values [B, capacity, K, D]
Doubles formula(const SmallSize& s, const Tensor& q, const Tensor& k, const Tensor& v) {
  Doubles y(static_cast<size_t>(s.B * s.H * s.D));
  const auto at = [](const Tensor& t, int64_t i) { return static_cast<double>(t.as<float>()[i]); };
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t h = 0; h < s.H; ++h) {
      const int64_t kv = h / (s.H / s.K), keys = s.starts[static_cast<size_t>(b)] + 1,
                    query = (b * s.H + h) * s.D;
      const auto row = [&](int64_t j) { return ((b * s.capacity() + j) * s.K + kv) * s.D; };
      Doubles p(static_cast<size_t>(std::max<int64_t>(keys, 0)));
      double most = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double& score = p[static_cast<size_t>(j)];
        for (int64_t d = 0; d < s.D; ++d) score += at(q, query + d) * at(k, row(j) + d);
        most = std::max(most, score *= static_cast<double>(1 / std::sqrt(static_cast<float>(s.D))));
      }
      for (double& x : p) sum += x = std::exp(x - most);
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t d = 0; d < s.D; ++d)
          y[static_cast<size_t>(query + d)] += p[static_cast<size_t>(j)] / sum * at(v, row(j) + d);
    }
  return y;
}

// Lengths around the borders of groups: no group, one to three, and one token more or less
TEST(SmallCache, DecodeAttentionIsItsFormulaOverTheNumbersOfTheCodes) {
  CpuStream cpu;
  for (const CacheDtype dtype : kSmall)
    for (const SmallSize& s :
         {SmallSize{dtype, 4, 2, 2, 64, {0, 63, -1, 200}},
          SmallSize{dtype, 6, 9, 1, 40, {126, 127, 128, 191, 192, 193}},
          SmallSize{dtype, 3, 6, 3, 10, {255, 256, 257}}, SmallSize{dtype, 2, 4, 2, 200, {320, 500}}}) {
      SCOPED_TRACE(s.to_string());
      HostTensors make;
      const SmallCacheOf cache(make, cpu, s, 5);
      const Tensor q = make.normal({s.B, 1, s.H, s.D}), y = make.poisoned(q.shape);
      cpu.run(DecodeAttention{.plan = plan_of(s),
                              .q = all_heads(q),
                              .k_cache = cache.ring_k,
                              .v_cache = cache.ring_v,
                              .starts = cache.starts,
                              .y = y,
                              .groups = cache.groups});
      expect_formula(y, formula(s, q, cache.wide_k, cache.wide_v), "y", tolerance::kCpuAttention);
    }
}

// Tokens that come one at a time, through a ring, become the groups that a prompt becomes at once.
TEST(SmallCache, TokensOneByOneGiveTheBitsOfAPrompt) {
  CpuStream cpu;
  for (const CacheDtype dtype : kSmall) {
    HostTensors make;
    const SmallSize s{dtype, 2, 2, 2, 24, {330, 270}};
    const SmallCacheOf at_once(make, cpu, s);
    const Tensor ring_k = make.poisoned(at_once.ring_k.shape), ring_v = make.poisoned(ring_k.shape),
                 groups = make.empty(at_once.groups.shape, DType::kI32),
                 starts = make.empty({s.B}, DType::kI32);
    const int64_t row = s.K * s.D, rows = CacheFormat::kNewestTokens;
    for (int32_t t = 0; t <= 330; ++t) {
      for (int64_t b = 0; b < s.B; ++b)  // a text that has ended is idle
        starts.as<int32_t>()[b] = t <= s.starts[static_cast<size_t>(b)] ? t : -1;
      const auto layer = [&](const Tensor& x) {
        return x.view({1, s.B, x.shape[1], x.shape[2], x.shape[3]});
      };
      cpu.run(QuantiseCache{.format = s.format(),
                            .k = layer(ring_k),
                            .v = layer(ring_v),
                            .groups = layer(groups),
                            .starts = starts});
      for (int64_t b = 0; b < s.B; ++b) {
        if (starts.as<int32_t>()[b] < 0) continue;
        const int64_t from = (b * s.capacity() + t) * row, to = (b * rows + t % rows) * row;
        std::copy_n(at_once.k.as<float>() + from, row, ring_k.as<float>() + to);
        std::copy_n(at_once.v.as<float>() + from, row, ring_v.as<float>() + to);
      }
    }
    const int64_t words = s.format().group_words(), G = groups.shape[2];
    for (int64_t b = 0; b < s.B; ++b)
      for (int64_t head = 0; head < s.K; ++head) {
        const int64_t full = CacheFormat::groups_of(s.starts[static_cast<size_t>(b)] + 1);
        ASSERT_GT(full, 1);
        const int64_t first = (b * s.K + head) * G * words;
        EXPECT_TRUE(std::equal(groups.as<int32_t>() + first, groups.as<int32_t>() + first + full * words,
                               at_once.groups.as<int32_t>() + first));
      }
  }
}

// Keys with a bias of 300 in some channels: what they add to a score is the same for all keys, and the rest
// is as exact as without it. One symmetric step for a token's whole head would be 300 / 7 in 4 bits, beside
// which all other channels are 0.
TEST(SmallCache, ABiasOfKeysDoesNotCostTheOtherChannels) {
  CpuStream cpu;
  const int64_t D = 64;
  const auto worst_score = [&](CacheDtype dtype, float offset, bool one_step) {
    HostTensors make;
    const SmallSize s{dtype, 1, 1, 1, D, {383}};
    const SmallCacheOf cache(make, cpu, s, offset);
    const std::span<float> q = floats(make.normal({D}));
    double worst = 0;
    for (int64_t t = 0; t < CacheFormat::groups_of(384) * kTokens; ++t) {
      const float *exact = cache.k.as<float>() + t * D, *wide = cache.wide_k.as<float>() + t * D;
      double most = 0, error = 0;
      for (int64_t d = 0; d < D; ++d) most = std::max(most, std::abs(double{exact[d]}));
      const double step = most / static_cast<double>(CacheFormat{dtype, 64}.above());
      for (int64_t d = 0; d < D; ++d) {
        const double found = one_step ? step * std::round(exact[d] / step) : double{wide[d]};
        error += double{q[static_cast<size_t>(d)]} * (found - double{exact[d]});
      }
      worst = std::max(worst, std::abs(error) / std::sqrt(static_cast<double>(D)));
    }
    return worst;
  };
  // A code's error is uniform up to s / 2, of a spread of about 5: 5 / levels / sqrt(12) a channel, times q
  // of size 1, a mean over sqrt(D) of them; the worst of 256 keys lies four deviations out. Twice that, as
  // the bias costs its channels the rounding of z, 2^-9 of 300, in each step.
  for (const auto& [dtype, levels] :
       {std::pair{CacheDtype::kInt8, 255.0}, std::pair{CacheDtype::kInt4, 15.0}}) {
    const double bound = 2 * 4 * 5 / levels / std::sqrt(12.0);
    const double plain = worst_score(dtype, 0, false), biased = worst_score(dtype, 300, false),
                 one_step = worst_score(dtype, 300, true);
    EXPECT_LE(plain, bound) << name_of(dtype);
    EXPECT_LE(biased, bound) << name_of(dtype);
    EXPECT_GT(one_step, 3 * bound) << name_of(dtype);  // a step of 2.4; of 43, beside which 1 is 0
  }
  EXPECT_LE(worst_score(CacheDtype::kFp8, 300, false),
            2 * 4 * 0.04);  // 2^-4 of numbers of 1 / sqrt(12), twice
}

TEST(SmallCache, NumbersThatAreNotFiniteStaySo) {
  CpuStream cpu;
  for (const CacheDtype dtype : kSmall)
    for (const float bad : {NAN, INFINITY}) {
      HostTensors make;
      const SmallSize s{dtype, 1, 1, 1, 16, {299}};
      const Tensor k = make.normal({1, 1, 303, 1, 16}), v = make.normal(k.shape);
      k.as<float>()[70 * 16 + 5] = bad, v.as<float>()[10 * 16 + 1] = bad;
      const Tensor groups = make.empty({1, 1, 1, 3, s.format().group_words()}, DType::kI32),
                   wide_k = make.poisoned({303, 1, 16}), wide_v = make.poisoned({303, 1, 16});
      cpu.run(QuantiseCache{.format = s.format(), .k = k, .v = v, .groups = groups, .count = 3});
      cpu.run(DequantiseCache{.format = s.format(),
                              .groups = groups.view({1, 3, s.format().group_words()}),
                              .count = 3,
                              .k = wide_k,
                              .v = wide_v});
      for (int64_t t = 0; t < 192; ++t)
        for (int64_t d = 0; d < 16; ++d) {
          EXPECT_EQ(std::isnan(wide_k.as<float>()[t * 16 + d]), t / 64 == 1 && d == 5);
          EXPECT_EQ(std::isnan(wide_v.as<float>()[t * 16 + d]), t == 10);
        }
    }
}

TEST(SmallCache, RefusesGroupsOfAnotherSize) {
  CpuStream cpu;
  HostTensors make;
  const CacheFormat format{.dtype = CacheDtype::kInt4, .head_dim = 64};
  const Tensor k = make.normal({1, 1, 200, 2, 64});
  const auto refusal = [&](int64_t groups, int64_t words) {
    return refusal_of(cpu, QuantiseCache{.format = format,
                                         .k = k,
                                         .v = k,
                                         .groups = make.empty({1, 1, 2, groups, words}, DType::kI32),
                                         .count = 2});
  };
  EXPECT_TRUE(
      says(refusal(2, 99), {"quantise cache", "int4", "heads of 64", std::to_string(format.group_words())}));
  EXPECT_TRUE(says(refusal(1, format.group_words()), {"quantise cache", "groups 0 to 2 of 1"}));
}

}  // namespace
}  // namespace tessera::testing

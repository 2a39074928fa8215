// Small caches on CUDA: codes with the bits of the CPU, and attention over them against fp64.
#include "kernels/attention/small_cache.h"

#include <algorithm>

#include "kernels/attention/decode.h"
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

constexpr CacheDtype kSmall[] = {CacheDtype::kFp8, CacheDtype::kInt8, CacheDtype::kInt4};
constexpr int64_t kTokens = CacheFormat::kGroupTokens, kRing = CacheFormat::kNewestTokens;

struct SmallCase {
  CacheDtype dtype;
  int64_t kv_heads, group, head_dim;
  std::vector<int32_t> starts;
  AttentionScores scores = {};
  float size = 1;  // of queries

  int64_t batch() const { return std::ssize(starts); }
  int64_t heads() const { return kv_heads * group; }
  int64_t capacity() const { return std::max<int64_t>(*std::ranges::max_element(starts) + 6, 2 * kRing); }
  int64_t length(int64_t b) const { return starts[static_cast<size_t>(b)] + int64_t{1}; }
  CacheFormat format() const { return {.dtype = dtype, .head_dim = static_cast<int>(head_dim)}; }
  DecodePlan plan(DType of, const DeviceTraits& device) const {
    return choose_decode({.batch = batch(),
                          .heads = heads(),
                          .head_dim = head_dim,
                          .kv_heads = kv_heads,
                          .capacity = capacity(),
                          .scores = scores,
                          .cache = dtype},
                         of, device);
  }
  std::string text() const {
    return fmt::format("{}, {} x {} heads of {}, {} sequences, the first at {}{}{}{}", name_of(dtype),
                       kv_heads, group, head_dim, batch(), starts[0], scores.sinks ? ", sinks" : "",
                       scores.alibi_heads ? ", ALiBi" : "", scores.cap > 0 ? ", a cap" : "");
  }
};

// [capacity, K, D] of sequence b of [B, capacity, K, D], or the same of groups and rings
Tensor of_sequence(const Tensor& all, int64_t b) {
  const Shape& s = all.shape;
  return all.view({s[0], s[1] * s[2] * s[3]}).rows(b, 1).view({s[1], s[2], s[3]});
}

class SmallCacheOnCuda : public CudaTest {
 protected:
  // Of a text that was read at once. Rows and groups that nothing reads are NaN.
  struct Cache {
    Twin k, v, groups, ring_k, ring_v, starts;
    Tensor wide_k, wide_v;  // on the CPU: what the cache has
  };

  Twin ring_of(const SmallCase& c, const Twin& text) {
    const int64_t row = c.kv_heads * c.head_dim;
    return with_values(DType::kBF16, {c.batch(), kRing, c.kv_heads, c.head_dim}, [&](int64_t i) {
      const int64_t b = i / (kRing * row), place = i / row % kRing;
      for (int64_t t = CacheFormat::groups_of(c.length(b)) * kTokens; t < c.length(b); ++t)
        if (t % kRing == place) return text.cpu.as<float>()[(b * c.capacity() + t) * row + i % row];
      return NAN;
    });
  }

  Cache make(const SmallCase& c) {
    const int64_t G = CacheFormat::groups_of(c.capacity()), words = c.format().group_words();
    const Shape text{c.batch(), c.capacity(), c.kv_heads, c.head_dim};
    std::normal_distribution<float> normal;
    // Every sixteenth channel of the keys is far from 0.
    Cache cache{.k = with_values(DType::kBF16, text,
                                 [&](int64_t i) { return normal(random_) + (i % 16 == 3 ? 20.0f : 0.0f); }),
                .v = input(DType::kBF16, text),
                .groups = output(DType::kI32, {c.batch(), c.kv_heads, G, words}),
                .ring_k = {},
                .ring_v = {},
                .starts = indices({c.batch()}, [&](int64_t b) { return c.starts[static_cast<size_t>(b)]; }),
                .wide_k = output(DType::kF32, text).cpu,
                .wide_v = output(DType::kF32, text).cpu};
    for (int64_t b = 0; b < c.batch(); ++b) {
      const int64_t full = CacheFormat::groups_of(c.length(b));
      const auto as_layer = [](const Tensor& one) {
        return one.view({1, 1, one.shape[0], one.shape[1], one.shape[2]});
      };
      run_on_both({cache.groups}, [&](auto on) {
        return QuantiseCache{.format = c.format(),
                             .k = as_layer(of_sequence(on(cache.k), b)),
                             .v = as_layer(of_sequence(on(cache.v), b)),
                             .groups = as_layer(of_sequence(on(cache.groups), b)),
                             .count = full};
      });
      const Tensor wide_k = of_sequence(cache.wide_k, b), wide_v = of_sequence(cache.wide_v, b);
      cpu().run(DequantiseCache{.format = c.format(),
                                .groups = of_sequence(cache.groups.cpu, b),
                                .count = full,
                                .k = wide_k,
                                .v = wide_v});
      const int64_t row = c.kv_heads * c.head_dim;
      for (const auto& [from, to] :
           {std::pair{of_sequence(cache.k.cpu, b), wide_k}, std::pair{of_sequence(cache.v.cpu, b), wide_v}})
        std::copy(from.as<float>() + full * kTokens * row, from.as<float>() + from.numel(),
                  to.as<float>() + full * kTokens * row);
    }
    cache.ring_k = ring_of(c, cache.k), cache.ring_v = ring_of(c, cache.v);
    return cache;
  }

  void expect_same_groups(const Twin& groups) {
    const std::vector<char> found = bytes_of(groups.cuda);
    ASSERT_EQ(found.size(), groups.cpu.bytes());
    EXPECT_EQ(std::memcmp(found.data(), groups.cpu.data, found.size()), 0) << "other codes than the CPU's";
  }

  // The formula in fp64 over what the cache has; without sinks, a bias or a cap
  std::vector<double> reference(const SmallCase& c, const Cache& cache, const Twin& q) const {
    const int64_t D = c.head_dim;
    std::vector<double> y(static_cast<size_t>(c.batch() * c.heads() * D), 0.0);
    for (int64_t b = 0; b < c.batch(); ++b)
      for (int64_t h = 0; h < c.heads(); ++h) {
        const float* query = q.cpu.as<float>() + (b * c.heads() + h) * D;
        const auto row = [&](const Tensor& t, int64_t j) {
          return t.as<float>() + ((b * c.capacity() + j) * c.kv_heads + h / c.group) * D;
        };
        std::vector<double> p(static_cast<size_t>(std::max<int64_t>(c.length(b), 0)));
        double most = -INFINITY, sum = 0;
        for (size_t j = 0; j < p.size(); ++j) {
          const float* key = row(cache.wide_k, static_cast<int64_t>(j));
          for (int64_t d = 0; d < D; ++d) p[j] += double{query[d]} * double{key[d]};
          most = std::max(most, p[j] /= std::sqrt(static_cast<double>(D)));
        }
        for (double& x : p) sum += x = std::exp(x - most);
        for (size_t j = 0; j < p.size(); ++j)
          for (int64_t d = 0; d < D; ++d)
            y[static_cast<size_t>((b * c.heads() + h) * D + d)] +=
                p[j] / sum * double{row(cache.wide_v, static_cast<int64_t>(j))[d]};
      }
    return y;
  }

  Twin attend(const SmallCase& c, const Cache& cache, const Twin& q, const Twin& sinks = {}) {
    const DecodePlan on_cpu = c.plan(DType::kF32, cpu().backend().traits()),
                     on_cuda = c.plan(DType::kBF16, traits());
    const Twin y = output(DType::kBF16, {c.batch(), 1, c.heads(), c.head_dim});
    const Tensor scratch = output(DType::kF32, {(on_cuda.workspace_bytes + 3) / 4}).cuda;
    run_on_both({y}, [&](auto on) {
      return DecodeAttention{.plan = on(on_cpu, on_cuda),
                             .q = all_heads(on(q)),
                             .k_cache = on(cache.ring_k),
                             .v_cache = on(cache.ring_v),
                             .starts = on(cache.starts),
                             .y = on(y),
                             .workspace = on(Tensor{}, scratch),
                             .sinks = on(sinks),
                             .groups = on(cache.groups)};
    });
    return y;
  }

  void expect_right(const SmallCase& c) {
    SCOPED_TRACE(c.text());
    const Cache cache = make(c);
    expect_same_groups(cache.groups);
    const Twin q = input(DType::kBF16, {c.batch(), 1, c.heads(), c.head_dim}, c.size);
    const std::vector<float> got = floats_of(attend(c, cache, q).cuda);
    const std::vector<double> want = reference(c, cache, q);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(want[i]));
      const double difference = std::abs(double{got[i]} - want[i]);
      if (!(difference <= worst)) worst = difference;
    }
    EXPECT_LE(worst, largest * (c.dtype == CacheDtype::kInt4 ? tolerance::attention::kInt4DecodeOut
                                                             : tolerance::attention::kBf16DecodeOut));
  }
};

// Lengths around the borders of groups, of texts of no group, one, two and three
TEST_F(SmallCacheOnCuda, AttentionAgreesWithFp64) {
  for (const CacheDtype dtype : kSmall)
    for (const int64_t head_dim : {8, 40, 64, 80, 128, 200, 256})
      for (const int64_t group : {1, 3, 8}) {
        expect_right({dtype, 2, group, head_dim, {0, 63, -1, 126, 127, 128, 129}});
        expect_right({dtype, 1, group, head_dim, {190, 191, 192, 255, -5, 256, 257, 320, 1}});
      }
}

TEST_F(SmallCacheOnCuda, AttentionAgreesWithFp64WhereManyThreadBlocksShareAHead) {
  for (const CacheDtype dtype : kSmall)
    for (const int64_t head_dim : {64, 128, 256})
      for (const int64_t group : {1, 4, 12}) expect_right({dtype, 1, group, head_dim, {8190}});
}

TEST_F(SmallCacheOnCuda, AttentionAgreesWithFp64OverManySequencesOfDifferentLengths) {
  for (const CacheDtype dtype : kSmall) {
    SmallCase c{dtype, 3, 2, 64, {}};
    for (int b = 0; b < 60; ++b)
      c.starts.push_back(static_cast<int32_t>(
          random_() % 5 == 0 ? -1 : static_cast<int32_t>(random_() % (b % 3 == 0 ? 900 : 150))));
    expect_right(c);
    std::ranges::fill(c.starts, -1);
    expect_right(c);  // all are idle
  }
}

// The largest score is raised again and again, and lags.
TEST_F(SmallCacheOnCuda, AttentionAgreesWithFp64WhereScoresAreLarge) {
  for (const CacheDtype dtype : {CacheDtype::kInt8, CacheDtype::kInt4}) {
    SmallCase c{dtype, 2, 4, 64, {2000, 377}};
    c.size = 4;
    expect_right(c);
  }
}

TEST_F(SmallCacheOnCuda, WithSinksAlibiAndACapAttentionIsThatOfTheCpu) {
  for (const CacheDtype dtype : kSmall)
    for (const int64_t head_dim : {40, 64, 128, 256})
      for (const AttentionScores& scores :
           {AttentionScores{.sinks = true}, AttentionScores{.alibi_heads = 6}, AttentionScores{.cap = 5}})
        for (const std::vector<int32_t>& starts : {std::vector<int32_t>{0, -1, 127, 300}, {4000}}) {
          const SmallCase c{dtype, 2, 3, head_dim, starts, scores};
          SCOPED_TRACE(c.text());
          const Cache cache = make(c);
          const Twin q = input(DType::kBF16, {c.batch(), 1, c.heads(), c.head_dim}),
                     sinks = scores.sinks ? input(DType::kBF16, {c.heads()}) : Twin{};
          expect_same(attend(c, cache, q, sinks), "y");
        }
}

// One token at a time, before each the group that leaves the ring, for several layers at once
TEST_F(SmallCacheOnCuda, TokensOneByOneGiveTheCodesOfTheCpu) {
  for (const CacheDtype dtype : kSmall) {
    const int64_t L = 2, B = 3, K = 2, D = 40, G = 3;
    const CacheFormat format{.dtype = dtype, .head_dim = D};
    const Shape ring{L, B, kRing, K, D};
    const Twin groups = output(DType::kI32, {L, B, K, G, format.group_words()});
    for (const int32_t start : {127, 128, 129, 191, 192, 256, 320, 384}) {  // the last has no room
      const Twin k = input(DType::kBF16, ring), v = input(DType::kBF16, ring),
                 starts =
                     indices({B}, [&](int64_t b) { return b == 1 ? -1 : start + static_cast<int32_t>(b); });
      run_on_both({groups}, [&](auto on) {
        return QuantiseCache{
            .format = format, .k = on(k), .v = on(v), .groups = on(groups), .starts = on(starts)};
      });
      expect_same_groups(groups);
    }
  }
}

TEST_F(SmallCacheOnCuda, NumbersOfCodesAreThoseOfTheCpu) {
  for (const CacheDtype dtype : kSmall)
    for (const int64_t D : {24, 128, 256}) {
      const SmallCase c{dtype, 3, 1, D, {400}};
      const Cache cache = make(c);
      for (const DType of : kReal) {
        const Twin k = output(of, {6 * kTokens, c.kv_heads, D}), v = output(of, {6 * kTokens, c.kv_heads, D});
        run_on_both({k, v}, [&](auto on) {
          return DequantiseCache{.format = c.format(),
                                 .groups = of_sequence(on(cache.groups), 0),
                                 .count = CacheFormat::groups_of(401),
                                 .k = on(k),
                                 .v = on(v)};
        });
        const int64_t count = CacheFormat::groups_of(401) * kTokens * c.kv_heads * D;
        for (const Twin& one : {k, v}) {
          const std::vector<float> got = floats_of(one.cuda);
          for (int64_t i = 0; i < count; ++i) {
            const float want = one.cpu.as<float>()[i];
            ASSERT_EQ(got[static_cast<size_t>(i)],
                      of == DType::kF32 ? want : float_from_bf16(bf16_from_float(want)));
          }
          for (size_t i = static_cast<size_t>(count); i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i]));
        }
      }
    }
}

TEST_F(SmallCacheOnCuda, RefusesFp32ByName) {
  const SmallCase c{CacheDtype::kInt4, 1, 1, 64, {300}};
  const std::string message = message_of([&] { c.plan(DType::kF32, traits()); });
  EXPECT_NE(message.find("int4"), std::string::npos) << message;
  EXPECT_NE(message.find("compute in bf16"), std::string::npos) << message;
}

}  // namespace
}  // namespace tessera

// Texts that are continued over a small cache: logits beside those of a forward over the whole text, which
// has no cache, and the memory.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/model_variants.h"
#include "tests/says.h"
#include "tests/support.h"
#include "tests/tolerances.h"
#include "train/session/decoder.h"

namespace tessera::testing {
namespace {

constexpr SamplingRule kMostProbable{.temperature = 0};
constexpr int64_t kLongContext = 512;

// Qwen2's shape, with a bias of keys of size `bias` in the last channels of both halves of a head, whose
// angles turn least
struct BiasedSession {
  explicit BiasedSession(float bias, ModelConfig model = qwen2())
      : session(*backend, arena, {.model = model, .batch = 1, .sequence_length = model.context}) {
    HostTensors values_of;
    const ParamSink write = session.store().writer();
    for (const ParamPlace& place : session.store().layout().places) {
      const Shape& shape = place.info.shape;
      // Outputs about as large as inputs, so that no softmax is a choice of one key
      const double size = shape.rank() == 2 ? 0.7 / std::sqrt(static_cast<double>(shape[1])) : 0.1;
      const Tensor values = values_of.normal(shape, size, place.info.init == Init::kOne ? 1 : 0);
      const int64_t padding = place.info.padding * values.numel() / shape[0];
      std::fill_n(values.as<float>() + values.numel() - padding, padding, 0.0f);
      const int64_t H = model.heads, K = model.kv_heads, D = model.head_dim;
      if (bias != 0 && shape.rank() == 1 && shape[0] == (H + 2 * K) * D)
        for (int64_t head = H; head < H + K; ++head)
          for (const int64_t channel : {D / 2 - 1, D / 2 - 2, D - 1, D - 2}) {
            values.as<float>()[head * D + channel] = channel % 2 == 0 ? bias : -bias;
            ++biased;
          }
      write(place, values);
    }
  }
  static ModelConfig qwen2() {
    ModelConfig model{.vocab_size = 97,
                      .context = kLongContext,
                      .layers = 3,
                      .heads = 4,
                      .channels = 64,
                      .kv_heads = 2,
                      .head_dim = 32,
                      .mlp_width = 128,
                      .norm = NormKind::kRmsNorm};
    model.positions = Positions::kRope, model.mlp = Mlp::kSwiglu, model.bias = Bias::kQkv;
    model.rope.theta = 1e6;
    return model;
  }
  std::vector<int32_t> text(int64_t count) {
    const Tensor ids = make.tokens({count}, session.shape().model.vocab_size);
    return {ids.as<int32_t>(), ids.as<int32_t>() + count};
  }
  // The norm of the error of logits, over that of the logits less their mean: after a prompt and after each
  // of `count` tokens that follow it, drawn by the decoder
  double error(const Decoder::Settings& settings, std::vector<int32_t> prompt, int64_t count) {
    Decoder decoder(session, settings);
    decoder.start(0, prompt, 0);
    std::vector<std::vector<float>> found{decoder.logits(0)};
    for (int64_t i = 0; i < count; ++i) {
      prompt.push_back(decoder.next(kMostProbable, 1)[0]);
      found.push_back(decoder.logits(0));
    }
    const std::vector<float> exact = session.last_logits(prompt, count + 1);
    const auto V = static_cast<size_t>(session.shape().model.vocab_size);
    double errors = 0, sizes = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      double mean = 0;
      for (size_t v = 0; v < V; ++v) mean += double{exact[i * V + v]} / static_cast<double>(V);
      for (size_t v = 0; v < V; ++v) {
        const double x = exact[i * V + v];
        errors += (double{found[i][v]} - x) * (double{found[i][v]} - x), sizes += (x - mean) * (x - mean);
      }
    }
    return std::sqrt(errors / sizes);
  }

  HostTensors make;
  int64_t biased = 0;
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Arena arena = Arena::host();
  Session session;
};

// A code's error is uniform up to half a step: 5 deviations of a channel over 15 or 255 steps, / sqrt(12),
// 10% and 0.6% of what keys and values tell apart; of e4m3, up to 2^-4 of a number, 2.5% on average. Keys and
// values of three layers are so far off, at random, and what attention adds is less than half of the stream.
double most_error(CacheDtype dtype) {
  const double of_code = dtype == CacheDtype::kInt4 ? 0.096 : dtype == CacheDtype::kInt8 ? 0.006 : 0.025;
  return of_code * std::sqrt(2.0 * 3) / 2;
}

TEST(SmallCacheOfADecoder, LogitsStayCloseWhateverTheBiasOfKeys) {
  BiasedSession plain(0), biased(100);
  EXPECT_EQ(biased.biased, 3 * 2 * 4);
  const std::vector<int32_t> prompt = plain.text(300);
  for (BiasedSession* one : {&plain, &biased})
    EXPECT_LE(one->error({.capacity = kLongContext}, prompt, 80), 1e-4);
  for (const CacheDtype dtype : {CacheDtype::kInt8, CacheDtype::kFp8, CacheDtype::kInt4}) {
    const Decoder::Settings settings{.capacity = kLongContext, .cache = dtype};
    const double without = plain.error(settings, prompt, 80), with = biased.error(settings, prompt, 80);
    EXPECT_LE(without, most_error(dtype)) << name_of(dtype);
    EXPECT_LE(with, 1.5 * without) << name_of(dtype);  // other texts; of no more error
    EXPECT_GT(with, 0);
  }
}

// However a prompt is cut into chunks; where only the newest tokens have been read, there is no error.
TEST(SmallCacheOfADecoder, PromptsAreReadInAnyChunks) {
  BiasedSession biased(30);
  for (const int64_t chunk : {7, 64, 100})
    for (const int64_t length : {1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257}) {
      SCOPED_TRACE(fmt::format("{} tokens by {}", length, chunk));
      const double error = biased.error(
          {.capacity = kLongContext, .prefill = chunk, .cache = CacheDtype::kInt8}, biased.text(length), 3);
      EXPECT_LE(error, most_error(CacheDtype::kInt8));
      // 128 tokens are no codes yet.
      if (length <= 125) {
        EXPECT_LE(error, 1e-4);
      }
    }
}

TEST(SmallCacheOfADecoder, ATextIsReadThroughIt) {
  BiasedSession biased(30);
  const std::vector<int32_t> text = biased.text(300);
  const std::vector<float> exact = biased.session.last_logits(text, 300);
  const auto V = static_cast<size_t>(biased.session.shape().model.vocab_size);
  for (const auto& [dtype, most] :
       {std::pair{CacheDtype::kAuto, 1e-4}, std::pair{CacheDtype::kInt8, most_error(CacheDtype::kInt8)},
        std::pair{CacheDtype::kInt4, most_error(CacheDtype::kInt4)}}) {
    Decoder decoder(biased.session, {.capacity = 300, .prefill = 64, .cache = dtype});
    std::vector<float> found;
    decoder.read_through(text, [&](int64_t first, std::span<const float> logits) {
      EXPECT_EQ(static_cast<size_t>(first) * V, found.size());
      found.insert(found.end(), logits.begin(), logits.end());
    });
    ASSERT_EQ(found.size(), exact.size());
    double errors = 0, sizes = 0, early = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double error = double{found[i]} - double{exact[i]};
      (i < 128 * V ? early : errors) += error * error, sizes += double{exact[i]} * double{exact[i]};
    }
    EXPECT_LE(std::sqrt(early / sizes), 1e-4) << name_of(dtype);  // none of 128 tokens is a code
    EXPECT_LE(std::sqrt(errors / sizes), most) << name_of(dtype);
    EXPECT_TRUE(decoder.is_idle(0));
  }
}

TEST(SmallCacheOfADecoder, TakesWindowsAndEveryShape) {
  for (const Variant& variant :
       parts_of({.vocab_size = 61, .context = 256, .layers = 2, .heads = 2, .channels = 32})) {
    if (variant.model.dropout) continue;
    SCOPED_TRACE(variant.name);
    BiasedSession biased(0, variant.model);
    EXPECT_LE(biased.error({.capacity = 256, .cache = CacheDtype::kInt8}, biased.text(180), 12),
              4 * most_error(CacheDtype::kInt8));  // of a few channels, and of weights of any kind
  }
}

// A text that is started again draws as the first one, whatever slots have read since; so do texts that lie
// side by side, of different lengths.
TEST(SmallCacheOfADecoder, CopiesOfAPromptGoOnAsItDoes) {
  BiasedSession biased(30);
  const std::vector<int32_t> prompt = biased.text(250), other = biased.text(140);
  const auto draw = [&](Decoder& decoder, int64_t slot, int count) {
    std::vector<int32_t> drawn;
    for (int i = 0; i < count; ++i)
      drawn.push_back(decoder.next({.temperature = 1}, 3)[static_cast<size_t>(slot)]);
    return drawn;
  };
  for (const CacheDtype dtype : {CacheDtype::kInt4}) {
    Decoder one(biased.session, {.capacity = kLongContext, .cache = dtype});
    one.start(0, prompt, 7);
    const std::vector<int32_t> wanted = draw(one, 0, 30);
    Decoder several(biased.session, {.slots = 3, .capacity = kLongContext, .cache = dtype});
    several.start(1, prompt, 7);
    EXPECT_EQ(draw(several, 1, 30), wanted);
    several.start_copy(1, 7);  // its own slot, which has gone on
    several.start_copy(2, 7);
    std::vector<int32_t> first, second;
    for (int i = 0; i < 30; ++i) {
      const auto drawn = several.next({.temperature = 1}, 3);
      first.push_back(drawn[1]), second.push_back(drawn[2]);
    }
    EXPECT_EQ(first, wanted);
    EXPECT_EQ(second, wanted);
    several.stop(1), several.stop(2);
    several.start(0, other, 4);
    several.start(2, prompt, 7);
    EXPECT_EQ(draw(several, 2, 30), wanted);
  }
}

TEST(SmallCacheOfADecoder, TakesTheBytesThatItSays) {
  BiasedSession biased(0);
  const ModelConfig& model = biased.session.shape().model;
  for (const CacheDtype dtype : {CacheDtype::kInt8, CacheDtype::kInt4}) {
    // 7 x 64 tokens less the 2 newest groups, of two heads in three layers; 128 newest tokens
    const int64_t of_group =
        dtype == CacheDtype::kInt4 ? 2 * 64 * 32 / 2 + 32 * 4 + 64 * 4 : 2 * 64 * 32 + 32 * 4 + 64 * 4;
    EXPECT_EQ(kv_cache_bytes(model, DType::kF32, 448, dtype), 3 * 2 * (5 * of_group + 2 * 128 * 32 * 4));
    EXPECT_EQ(kv_cache_bytes(model, DType::kF32, 128, dtype), kv_cache_bytes(model, DType::kF32, 128));
    EXPECT_EQ(kv_cache_bytes_of_token(model, DType::kF32, 448, dtype), 3 * 2 * of_group / 64.0);
    EXPECT_EQ(kv_cache_bytes_read(model, DType::kF32, 448, dtype, 200),
              3 * 2 * (2 * of_group + (200 - 128) * 2 * 32 * 4));
    Arena plan = Arena::plan(Device::kCpu);
    allocate_kv_cache(plan, model, DType::kF32, 4, 448, dtype);
    EXPECT_EQ(plan.ledger().current()[static_cast<size_t>(MemoryTag::kCache)],
              4 * kv_cache_bytes(model, DType::kF32, 448, dtype) + Arena::kAlignment);  // and `starts`
  }
}

TEST(SmallCacheOfADecoder, RefusesTheOtherPrecision) {
  std::string found = "not refused";
  try {
    checked_cache(CacheDtype::kBF16, DType::kF32);
  } catch (const Error& error) {
    found = error.what();
  }
  EXPECT_TRUE(says(found, {"--cache-dtype bf16", "fp32", "--precision bf16", "int4"}));
  EXPECT_EQ(checked_cache(CacheDtype::kF32, DType::kF32), CacheDtype::kAuto);
  EXPECT_EQ(checked_cache(CacheDtype::kInt4, DType::kF32), CacheDtype::kInt4);
}

}  // namespace
}  // namespace tessera::testing

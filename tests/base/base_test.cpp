// Tensors, the arena, the ledger, random numbers, bf16.
#include "kernels/base/bf16.h"
#include "kernels/base/text.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

TEST(Tensor, RefusesWrongViews) {
  HostTensors make;
  const Tensor t = make.zeros({4, 6});
  EXPECT_EQ(t.view({2, 12}).shape, (Shape{2, 12}));
  EXPECT_THROW(t.view({5, 5}), Error);
  EXPECT_EQ(t.rows(1, 2).as<float>(), t.as<float>() + 6);
  EXPECT_THROW(t.rows(3, 2), Error);
  EXPECT_FALSE(Tensor{});
  EXPECT_EQ(t.to_string(), "fp32 [4, 6] on cpu");
}

TEST(Arena, ScopesGiveBackInReverseAndTheLedgerKeepsThePeak) {
  Arena arena = Arena::host();
  const Tensor weights = arena.alloc(MemoryTag::kWeights, "w", DType::kF32, {100});
  void* first = nullptr;
  {
    Arena::Scope outer(arena);
    first = arena.alloc(MemoryTag::kActivations, "a", DType::kF32, {1000}).data;
    {
      Arena::Scope inner(arena);
      arena.alloc(MemoryTag::kAttention, "s", DType::kBF16, {1000});
    }
    arena.alloc(MemoryTag::kAttention, "t", DType::kBF16, {10});
  }
  EXPECT_EQ(arena.ledger().current_bytes(), 512);  // 400 bytes, rounded up to 256
  EXPECT_EQ(arena.ledger().peak_bytes(), 512 + 4096 + 2048);
  EXPECT_EQ(arena.ledger().at_peak()[static_cast<int>(MemoryTag::kAttention)], 2048);
  EXPECT_EQ(arena.alloc(MemoryTag::kData, "again", DType::kF32, {1000}).data, first);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.data) % Arena::kAlignment, 0u);
}

TEST(Arena, GrowsBeyondAPieceAndReturnsToIt) {
  Arena arena = Arena::host();
  const int64_t many = Arena::kMinPiece / 4;  // one piece of fp32
  for (int round = 0; round < 3; ++round) {
    Arena::Scope scope(arena);
    std::vector<Tensor> tensors;
    for (int i = 0; i < 3; ++i)
      tensors.push_back(arena.alloc(MemoryTag::kData, "t", DType::kF32, {many - 100}));
    for (size_t i = 0; i < 3; ++i)
      floats(tensors[i])[0] = static_cast<float>(i), floats(tensors[i]).back() = static_cast<float>(i);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(floats(tensors[i])[0] + floats(tensors[i]).back(), 2 * static_cast<float>(i));
  }
  EXPECT_EQ(arena.reserved_bytes(), 3 * Arena::kMinPiece);
}

TEST(Arena, APlanHasShapesAndNoMemory) {
  Arena plan = Arena::plan(Device::kCuda);
  const Tensor t = plan.alloc(MemoryTag::kWeights, "huge", DType::kBF16, {int64_t{1} << 40});
  EXPECT_EQ(t.data, nullptr);
  EXPECT_EQ(plan.ledger().peak_bytes(), int64_t{1} << 41);
  EXPECT_EQ(plan.reserved_bytes(), 0);
}

TEST(Arena, OutOfMemoryNamesWhatIsHeld) {
  Arena arena = Arena::host();
  arena.alloc(MemoryTag::kWeights, "w", DType::kF32, {256});
  try {
    arena.alloc(MemoryTag::kActivations, "scores", DType::kF32, {int64_t{1} << 44});
    FAIL() << "64 TiB were granted";
  } catch (const OutOfMemory& error) {
    const std::string what = error.what();
    for (const char* part : {"out of system memory", "64.0 TiB for scores", "weights 1.0 KiB"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
}

TEST(Random, PhiloxMatchesThePublishedVectors) {
  // Random123's known answers for philox4x32-10: counter and key all zero, and all ones
  const auto zero = Philox(0, 0).bits(0);
  EXPECT_EQ(zero, (Philox::Words{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  const auto ones = Philox(~uint64_t{0}, ~uint64_t{0}).bits(~uint64_t{0});
  EXPECT_EQ(ones, (Philox::Words{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
}

TEST(Random, NormalsAreNormal) {
  const Philox random(3, 1);
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    sum += x, squares += x * x, fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NEAR(fourth / kCount, 3, 0.15);
}

// Of all 2^16 draws, as many round up as the lower half of the float says: the mean is the float itself.
TEST(Bf16, RoundsAtRandomWithTheRightOdds) {
  for (const uint32_t bits : {0x3f801234u, 0xbf8fffffu, 0x3fffffffu, 0x00000001u, 0x7f7e8000u, 0x3f800000u}) {
    uint32_t ups = 0;
    for (uint32_t random = 0; random < 0x10000; ++random) {
      // Whose upper half must not matter
      const uint16_t rounded = bf16_at_random(bits, random | 0xabcd0000u);
      EXPECT_TRUE(rounded == bits >> 16 || rounded == (bits >> 16) + 1) << bits;
      ups += rounded != bits >> 16;
    }
    EXPECT_EQ(ups, bits & 0xffffu) << bits;
  }
}

TEST(Bf16, RoundingAtRandomKeepsWhatItCanHoldAndStaysFinite) {
  for (uint32_t held = 0; held < 0x10000; ++held)
    for (const uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) {
      const uint16_t rounded = bf16_at_random(held << 16, random);
      if (std::isnan(float_from_bf16(static_cast<uint16_t>(held)))) {
        EXPECT_TRUE(std::isnan(float_from_bf16(rounded))) << held;
      } else {
        EXPECT_EQ(rounded, held);
      }
    }
  for (const uint32_t random : {0u, 0xffffu}) {
    EXPECT_EQ(bf16_at_random(0x7f7fffffu, random), 0x7f7f) << "the largest float";
    EXPECT_EQ(bf16_at_random(0xff7fffffu, random), 0xff7f);
    EXPECT_TRUE(std::isnan(float_from_bf16(bf16_at_random(0x7f800001u, random))))
        << "only its last bit says NaN";
  }
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(bf16_from_float(1.0f), 0x3F80);
  EXPECT_EQ(bf16_from_float(1.00390625f), 0x3F80);  // halfway between two: the even one
  EXPECT_EQ(bf16_from_float(1.01171875f), 0x3F82);
  EXPECT_EQ(float_from_bf16(bf16_from_float(-INFINITY)), -INFINITY);
  EXPECT_EQ(float_from_bf16(bf16_from_float(3.4e38f)), INFINITY);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Ledger, FormatsBytes) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(int64_t{300} << 20), "300 MiB");
}

}  // namespace
}  // namespace tessera::testing

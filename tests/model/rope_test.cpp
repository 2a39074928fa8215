// The angles of rotary positions, against their formulas in long double, far beyond the trained context.
#include "model/rope.h"

#include <cmath>
#include <numbers>

#include "tests/support.h"

namespace tessera::testing {
namespace {

ModelConfig rotary(RopeScaling scaling) {
  ModelConfig model{
      .vocab_size = 8, .context = 131072, .layers = 1, .heads = 1, .channels = 64, .head_dim = 64};
  model.positions = Positions::kRope;
  model.rope = {.theta = 500000, .scaling = scaling, .factor = 32, .original_context = 8192};
  return model;
}

// f_i of Llama 3.2 (llama3), by cases as its paper has them
long double llama3(long double plain) {
  const long double wave = 2 * std::numbers::pi_v<long double> / plain;
  if (wave < 8192.0L / 4) return plain;
  if (wave > 8192.0L) return plain / 32;
  const long double share = (8192 / wave - 1) / (4 - 1);
  return (1 - share) * plain / 32 + share * plain;
}

// f_i of YaRN: pairs that turn more than 32 times within 8192 tokens stay, less than once are divided
long double yarn(long double plain, int i) {
  const auto pair_that_turns = [](long double turns) {
    return 64 * std::log(8192 / (turns * 2 * std::numbers::pi_v<long double>)) / (2 * std::log(500000.0L));
  };
  const long double first = std::floor(pair_that_turns(32)), last = std::ceil(pair_that_turns(1));
  const long double slow = std::clamp((i - first) / (last - first), 0.0L, 1.0L);
  return plain * (1 - slow) + plain / 32 * slow;
}

TEST(Rope, AnglesOfEveryScalingFarBeyondTheContext) {
  struct Case {
    RopeScaling scaling;
    long double factor;  // of cos and sin
  };
  constexpr int kPairs = 32;
  for (const auto& [scaling, factor] :
       {Case{RopeScaling::kNone, 1}, Case{RopeScaling::kLinear, 1}, Case{RopeScaling::kLlama3, 1},
        Case{RopeScaling::kYarn, 0.1L * std::log(32.0L) + 1}}) {
    SCOPED_TRACE(name_of(scaling));
    CpuStream cpu;
    Arena arena = Arena::host();
    const Tensor angles = allocate_angles(cpu, arena, rotary(scaling), {131072});
    ASSERT_EQ(angles.shape, (Shape{131072, kPairs, 2}));
    for (const int64_t t : {0, 1, 8191, 8192, 10007, 131071})
      for (int i = 0; i < kPairs; ++i) {
        const long double plain = std::pow(500000.0L, -2.0L * i / 64);
        const long double frequency = scaling == RopeScaling::kNone     ? plain
                                      : scaling == RopeScaling::kLinear ? plain / 32
                                      : scaling == RopeScaling::kLlama3 ? llama3(plain)
                                                                        : yarn(plain, i);
        const float* pair = angles.as<float>() + (t * kPairs + i) * 2;
        // fp64 angles: an error of 131071 x 2^-52 or so, then one rounding to fp32
        const double allowed = 1.5 * 0x1p-24 + 1e-9;
        EXPECT_NEAR(pair[0], static_cast<double>(factor * std::cos(t * frequency)), allowed) << t << " " << i;
        EXPECT_NEAR(pair[1], static_cast<double>(factor * std::sin(t * frequency)), allowed) << t << " " << i;
      }
  }
}

// Positions up to 4 million, beside the formula in fp64 and in long double: an angle is the product of the
// position and a frequency, and the roundings of both to fp64 are some 2^-53 of it. In fp32 its cosine would
// be wrong by percents.
TEST(Rope, AnglesUpTo4MillionPositions) {
  constexpr int64_t kPositions = int64_t{1} << 22, kPairs = 4;
  ModelConfig model = rotary(RopeScaling::kNone);
  model.channels = model.head_dim = 2 * kPairs;
  for (const double theta : {10000.0, 500000.0, 1e6}) {
    model.rope.theta = theta;
    CpuStream cpu;
    Arena arena = Arena::host();
    const Tensor angles = allocate_angles(cpu, arena, model, {kPositions});
    double worst = 0;
    for (int64_t i = 0; i < kPairs; ++i) {
      const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / (2 * kPairs));
      const long double exact =
          std::pow(static_cast<long double>(theta), -2.0L * static_cast<long double>(i) / (2 * kPairs));
      for (int64_t t = 0; t < kPositions; t += t < 1000 || t > kPositions - 1000 ? 1 : 997) {
        const float* pair = angles.as<float>() + (t * kPairs + i) * 2;
        const double allowed = 1.5 * 0x1p-24 + 4 * static_cast<double>(t) * 0x1p-53;
        const double angle = static_cast<double>(t) * frequency;
        const long double angle_exact = static_cast<long double>(t) * exact;
        ASSERT_NEAR(pair[0], std::cos(angle), allowed) << t;
        ASSERT_NEAR(pair[1], std::sin(angle), allowed) << t;
        ASSERT_NEAR(pair[0], static_cast<double>(std::cos(angle_exact)), allowed) << t;
        ASSERT_NEAR(pair[1], static_cast<double>(std::sin(angle_exact)), allowed) << t;
        const float narrow = static_cast<float>(t) * static_cast<float>(frequency);
        worst = std::max(worst, std::abs(std::cos(static_cast<double>(narrow)) - std::cos(angle)));
      }
    }
    EXPECT_GT(worst, 1e-3) << "fp32 angles would do, and this test says nothing";
  }
}

TEST(Rope, TheContextIsTheOriginalUnlessItIsGiven) {
  ModelConfig given = rotary(RopeScaling::kLlama3), open = given;
  open.rope.original_context = 0;
  open.context = 8192;
  EXPECT_EQ(rope_frequencies(open, open.context), rope_frequencies(given, given.context));
  open.context = 131072;
  EXPECT_NE(rope_frequencies(open, open.context), rope_frequencies(given, given.context));
}

// Half a head that is rotated has the angles of a head of half the size.
TEST(Rope, AShareOfAHeadHasTheAnglesOfASmallerHead) {
  for (const RopeScaling scaling :
       {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kYarn}) {
    ModelConfig half = rotary(scaling), small = half;
    half.rope.share = 0.5, small.head_dim = 32;
    EXPECT_EQ(half.rotated_channels(), 32);
    EXPECT_EQ(rope_frequencies(half, half.context), rope_frequencies(small, small.context))
        << name_of(scaling);
    EXPECT_EQ(std::ssize(rope_frequencies(half, half.context)), 16);
  }
}

TEST(Rope, YarnScalesByAFactorThatMayBeGiven) {
  ModelConfig model = rotary(RopeScaling::kYarn);
  model.rope.factor = 4;
  EXPECT_NEAR(rope_attention_factor(model), 0.1 * std::log(4) + 1, 1e-15);
  model.rope.attention_factor = 1.25;
  EXPECT_EQ(rope_attention_factor(model), 1.25);
  model.rope = {.scaling = RopeScaling::kYarn, .factor = 1};
  EXPECT_EQ(rope_attention_factor(model), 1);
}

TEST(Rope, LongropeDividesEachFrequencyByTheNumberOfSoLongASequence) {
  ModelConfig model = rotary(RopeScaling::kLongrope);
  model.rope.share = 0.125;  // of 64 channels: 4 pairs
  model.rope.short_factors = {1, 1.25, 1.5, 2}, model.rope.long_factors = {1.5, 3, 8, 40};
  ModelConfig plain = model;
  plain.rope = {.theta = 500000, .share = 0.125};
  const std::vector<double> unscaled = rope_frequencies(plain, 1);
  for (const int64_t tokens : {1, 8192, 8193, 131072}) {
    const std::vector<double>& by = tokens > 8192 ? model.rope.long_factors : model.rope.short_factors;
    const std::vector<double> found = rope_frequencies(model, tokens);
    ASSERT_EQ(found.size(), 4u);
    for (size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(found[i], unscaled[i] / by[i]) << tokens << " " << i;
  }
  // Of 16 times the original context: sqrt(1 + ln 16 / ln 8192)
  EXPECT_NEAR(rope_attention_factor(model), std::sqrt(1 + 4.0 / 13), 1e-15);
  model.context = 4096;
  EXPECT_EQ(rope_attention_factor(model), 1);
  model.rope.attention_factor = 1.25;
  EXPECT_EQ(rope_attention_factor(model), 1.25);

  CpuStream cpu;
  Arena arena = Arena::host();
  const Tensor table = allocate_angles(cpu, arena, model, {.positions = 9000, .sequence_length = 4096});
  EXPECT_NEAR(table.as<float>()[(8999 * 4 + 3) * 2], 1.25 * std::cos(8999 * unscaled[3] / 2), 1e-6);
  model.rope.long_factors = {1, 2, 3};
  EXPECT_NO_THROW(rope_frequencies(model, 8192));
  expect_error([&] { rope_frequencies(model, 8193); },
               {"model.rope.long_factors", "has 3", "each pair", "4"});
}

TEST(Rope, ModelsWithAPositionTableHaveNoAngles) {
  CpuStream cpu;
  Arena arena = Arena::host();
  EXPECT_FALSE(allocate_angles(cpu, arena, {8, 16, 1, 1, 8}, {16}));
  EXPECT_EQ(arena.ledger().peak_bytes(), 0);
}

}  // namespace
}  // namespace tessera::testing

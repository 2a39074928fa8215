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
    const Tensor angles = allocate_angles(cpu, arena, rotary(scaling), 131072);
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

TEST(Rope, TheContextIsTheOriginalUnlessItIsGiven) {
  ModelConfig given = rotary(RopeScaling::kLlama3), open = given;
  open.rope.original_context = 0;
  open.context = 8192;
  EXPECT_EQ(rope_frequencies(open), rope_frequencies(given));
  open.context = 131072;
  EXPECT_NE(rope_frequencies(open), rope_frequencies(given));
}

// Half a head that is rotated has the angles of a head of half the size.
TEST(Rope, AShareOfAHeadHasTheAnglesOfASmallerHead) {
  for (const RopeScaling scaling :
       {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kYarn}) {
    ModelConfig half = rotary(scaling), small = half;
    half.rope.share = 0.5, small.head_dim = 32;
    EXPECT_EQ(half.rotated_channels(), 32);
    EXPECT_EQ(rope_frequencies(half), rope_frequencies(small)) << name_of(scaling);
    EXPECT_EQ(std::ssize(rope_frequencies(half)), 16);
  }
}

TEST(Rope, YarnScalesByAFactorThatMayBeGiven) {
  Rope rope{.scaling = RopeScaling::kYarn, .factor = 4};
  EXPECT_NEAR(rope_attention_factor(rope), 0.1 * std::log(4) + 1, 1e-15);
  rope.attention_factor = 1.25;
  EXPECT_EQ(rope_attention_factor(rope), 1.25);
  rope = {.scaling = RopeScaling::kYarn, .factor = 1};
  EXPECT_EQ(rope_attention_factor(rope), 1);
}

TEST(Rope, ModelsWithAPositionTableHaveNoAngles) {
  CpuStream cpu;
  Arena arena = Arena::host();
  EXPECT_FALSE(allocate_angles(cpu, arena, {8, 16, 1, 1, 8}, 16));
  EXPECT_EQ(arena.ledger().peak_bytes(), 0);
}

}  // namespace
}  // namespace tessera::testing

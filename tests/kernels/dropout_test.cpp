// Dropout of a tensor on the CPU: its mask is that of tests/base/dropout_test.cpp.
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

constexpr Dropout kDropout{.threshold = 26, .key = 0x0123456789abcdef, .place = 5 * Dropout::kHeads};

struct DropoutTest : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
};

TEST_F(DropoutTest, IsItsFormula) {
  struct Size {
    int64_t B, T, C;
  };
  for (const auto& [B, T, C] :
       {Size{1, 1, 1}, Size{2, 3, 16}, Size{3, 5, 17}, Size{2, 7, 100}, Size{1, 9, 768}}) {
    SCOPED_TRACE(fmt::format("B {} T {} C {}", B, T, C));
    const Shape shape{B, T, C};
    const Tensor x = make.normal(shape), add = make.normal(shape), y = make.poisoned(shape),
                 sum = make.poisoned(shape);
    Dropout dropout = kDropout;
    dropout.first_sequence = 3;
    Doubles want, want_sum;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto column = static_cast<uint32_t>(i % C), row = static_cast<uint32_t>(i / C % T),
                 batch = static_cast<uint32_t>(i / C / T);
      const size_t at = static_cast<size_t>(i);
      const bool kept = DropoutMask(dropout).kept(batch, 0, row, column / 32) >> column % 32 & 1;
      want.push_back(kept ? floats(x)[at] * 256.0 / (256 - 26) : 0);
      want_sum.push_back(floats(add)[at] + want.back());
    }
    cpu.run(ApplyDropout{.x = x, .y = y, .dropout = dropout});
    expect_formula(y, want, "y");
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(floats(y)[i] == 0, want[i] == 0) << i;
    cpu.run(ApplyDropout{.x = x, .y = sum, .add = add, .dropout = dropout});
    expect_formula(sum, want_sum, "with add");

    const Tensor in_place = make.copy_of(x), onto_add = make.copy_of(add), both = make.copy_of(x);
    cpu.run(ApplyDropout{.x = in_place, .y = in_place, .dropout = dropout});
    expect_same_bits(in_place, y, "y is x");
    cpu.run(ApplyDropout{.x = x, .y = onto_add, .add = onto_add, .dropout = dropout});
    expect_same_bits(onto_add, sum, "y is add");
    cpu.run(ApplyDropout{.x = both, .y = both, .add = add, .dropout = dropout});
    expect_same_bits(both, sum, "y is x, with add");
  }
}

// A step's sequences in any number of batches
TEST_F(DropoutTest, DropsTheSameElementsInAnySplitOfTheBatch) {
  constexpr int64_t kBatch = 8, kTokens = 5, kChannels = 40;
  const Tensor x = make.normal({kBatch, kTokens, kChannels}), whole = make.poisoned(x.shape);
  cpu.run(ApplyDropout{.x = x, .y = whole, .dropout = kDropout});
  for (const int64_t each : {1, 2, 4}) {
    const Tensor parts = make.poisoned(x.shape);
    for (int64_t first = 0; first < kBatch; first += each) {
      Dropout dropout = kDropout;
      dropout.first_sequence = static_cast<uint32_t>(first);
      cpu.run(ApplyDropout{.x = x.rows(first, each), .y = parts.rows(first, each), .dropout = dropout});
    }
    expect_same_bits(parts, whole, "in parts");
  }
}

// An infinity or NaN that is dropped is 0, not NaN.
TEST_F(DropoutTest, WhatIsDroppedIsZeroWhateverItWas) {
  const Tensor x = make.poisoned({2, 3, 50}), y = make.poisoned(x.shape);
  cpu.run(ApplyDropout{.x = x, .y = y, .dropout = kDropout});
  int64_t zeros = 0;
  for (const float value : floats(y)) zeros += value == 0;
  EXPECT_GT(zeros, 0);
  for (const float value : floats(y)) EXPECT_TRUE(value == 0 || std::isnan(value));
}

TEST_F(DropoutTest, RefusesWhatDoesNotFit) {
  const Tensor x = make.normal({2, 3, 8}), other = make.normal({2, 3, 16});
  EXPECT_TRUE(says(refusal_of(cpu, ApplyDropout{.x = x, .y = other, .dropout = kDropout}),
                   {"dropout: y ", "fp32 [2, 3, 8] on cpu", "found fp32 [2, 3, 16]"}));
  EXPECT_TRUE(says(refusal_of(cpu, ApplyDropout{.x = x, .y = x, .add = other, .dropout = kDropout}),
                   {"dropout: add ", "fp32 [2, 3, 8] on cpu", "found fp32 [2, 3, 16]"}));
  EXPECT_TRUE(says(refusal_of(cpu, ApplyDropout{.x = x, .y = x, .dropout = {.threshold = 256}}),
                   {"dropout: dropout.threshold ", "0 to 255", "found 256"}));
  EXPECT_TRUE(says(refusal_of(cpu, ApplyDropout{.x = x, .y = x, .dropout = {.threshold = 1, .place = 7}}),
                   {"dropout: dropout.place ", "multiple of 65536", "found 7"}));
}

}  // namespace
}  // namespace tessera::testing

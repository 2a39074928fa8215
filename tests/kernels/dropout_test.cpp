// Dropout on the CPU: its mask from Philox's words as kernels/base/dropout.h defines it, and what it does to
// a tensor.
#include "kernels/base/dropout.h"

#include "tests/kernels/formula.h"

namespace tessera::testing {
namespace {

constexpr Dropout kDropout{.threshold = 26, .key = 0x0123456789abcdef, .place = 5 * Dropout::kHeads};

struct DropoutTest : ::testing::Test {
  HostTensors make;
  CpuStream cpu;
};

// The random byte of a column, bit by bit from its unit's eight planes.
int byte_of(const Dropout& dropout, uint32_t batch, uint32_t head, uint32_t row, uint32_t column) {
  const Philox::Words words = dropout.draw(batch, head, row, column / Dropout::kUnit);
  int byte = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t plane = words[i / 2] >> (i % 2 == 0 ? 0 : 16);
    byte |= static_cast<int>(plane >> column % Dropout::kUnit & 1) << i;
  }
  return byte;
}
bool is_kept(const Dropout& dropout, uint32_t batch, uint32_t head, uint32_t row, uint32_t column) {
  return dropout.kept(batch, head, row, column / 32) >> column % 32 & 1;
}

TEST_F(DropoutTest, KeepsTheColumnsWhoseByteReachesTheThreshold) {
  for (int threshold = 0; threshold < Dropout::kResolution; ++threshold) {
    Dropout dropout = kDropout;
    dropout.threshold = threshold;
    for (uint32_t column = 0; column < 96; ++column)
      ASSERT_EQ(is_kept(dropout, 2, 3, 7, column), byte_of(dropout, 2, 3, 7, column) >= threshold)
          << threshold << " " << column;
  }
}

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
      const bool kept = byte_of(dropout, batch, 0, row, column) >= dropout.threshold;
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

// Two masks that stand for different places agree as often as independent ones do: with a share q kept, in
// q^2 + (1 - q)^2 of all elements. Five standard deviations.
TEST_F(DropoutTest, MasksOfOtherPlacesAreIndependent) {
  constexpr uint32_t kRows = 512, kColumns = 512;
  constexpr double kElements = double{kRows} * kColumns;
  for (const int threshold : {26, 51, 128, 230}) {
    Dropout a = kDropout;
    a.threshold = threshold;
    const double kept = 1 - threshold / 256.0, same = kept * kept + (1 - kept) * (1 - kept);
    const auto compare = [&](const char* what, const auto& other) {
      int64_t count = 0, equal = 0;
      for (uint32_t row = 0; row < kRows; ++row)
        for (uint32_t column = 0; column < kColumns; ++column) {
          const bool one = is_kept(a, 1, 0, row, column);
          count += one;
          equal += one == other(row, column);
        }
      EXPECT_NEAR(count / kElements, kept, 5 * std::sqrt(kept * (1 - kept) / kElements)) << what;
      EXPECT_NEAR(equal / kElements, same, 5 * std::sqrt(same * (1 - same) / kElements))
          << what << " at " << threshold;
    };
    const auto with = [&](const auto& change) {
      Dropout b = a;
      change(b);
      return [b](uint32_t row, uint32_t column) { return is_kept(b, 1, 0, row, column); };
    };
    compare("the next step's key", with([](Dropout& b) { b.key += 1; }));
    compare("the next place", with([](Dropout& b) { b.place += Dropout::kHeads; }));
    compare("the next sequence", with([](Dropout& b) { b.first_sequence += 1; }));
    compare("the next head", [&](uint32_t row, uint32_t column) { return is_kept(a, 1, 1, row, column); });
    compare("the next row", [&](uint32_t row, uint32_t column) { return is_kept(a, 1, 0, row + 1, column); });
    for (const uint32_t shift : {1u, 15u, 16u, 17u, 32u})
      compare("a column to the right",
              [&](uint32_t row, uint32_t column) { return is_kept(a, 1, 0, row, column + shift); });
    compare("row and column exchanged",
            [&](uint32_t row, uint32_t column) { return is_kept(a, 1, 0, column + kRows, row); });
  }
}

TEST_F(DropoutTest, RefusesWhatDoesNotFit) {
  const Tensor x = make.normal({2, 3, 8}), other = make.normal({2, 3, 16});
  EXPECT_EQ(refusal_of(cpu, ApplyDropout{.x = x, .y = other, .dropout = kDropout}),
            "dropout: y wants fp32 [2, 3, 8] on cpu, found fp32 [2, 3, 16] on cpu");
  EXPECT_EQ(refusal_of(cpu, ApplyDropout{.x = x, .y = x, .add = other, .dropout = kDropout}),
            "dropout: add wants fp32 [2, 3, 8] on cpu, found fp32 [2, 3, 16] on cpu");
  EXPECT_EQ(refusal_of(cpu, ApplyDropout{.x = x, .y = x, .dropout = {.threshold = 256}}),
            "dropout: dropout.threshold wants 0 to 255, found 256");
  EXPECT_EQ(refusal_of(cpu, ApplyDropout{.x = x, .y = x, .dropout = {.threshold = 1, .place = 7}}),
            "dropout: dropout.place wants a multiple of 65536, found 7");
}

}  // namespace
}  // namespace tessera::testing

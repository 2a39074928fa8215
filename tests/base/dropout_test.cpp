// The mask of dropout: its definition byte by byte, the share that it drops, and that neighbours in every
// direction are independent. Seeds are fixed: what passes once passes always.
#include "kernels/base/dropout.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace tessera::testing {
namespace {

using Four = std::array<uint32_t, 4>;

// Salmon et al., section 3.3, as it stands there: each round, then the next round's key
Four plain_philox(Four counter, std::array<uint32_t, 2> key, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const uint64_t left = 0xD2511F53ull * counter[0], right = 0xCD9E8D57ull * counter[2];
    const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
    counter = {high(right) ^ counter[1] ^ key[0], static_cast<uint32_t>(right),
               high(left) ^ counter[3] ^ key[1], static_cast<uint32_t>(left)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

TEST(Dropout, SevenRoundsOfPhilox) {
  // Random123's known answers for philox4x32-7: counter and key all zero, and all ones
  EXPECT_EQ(Philox(0, 0).bits<7>(0), (Philox::Words{{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}}));
  EXPECT_EQ(Philox(~uint64_t{0}, ~uint64_t{0}).bits<7>(~uint64_t{0}),
            (Philox::Words{{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}}));
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t key = i * 0x9e3779b97f4a7c15, stream = ~key * 0xd1342543de82ef95,
                   index = key ^ stream >> 7;
    const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
    const Four want = plain_philox({low(index), low(index >> 32), low(stream), low(stream >> 32)},
                                   {low(key), low(key >> 32)}, 7);
    EXPECT_EQ(Philox(key, stream).bits<7>(index), (Philox::Words{{want[0], want[1], want[2], want[3]}}));
  }
}

// Column j's random byte: bit i of it is bit j % 16 of the i-th half word of its unit's four words.
int random_byte(const Dropout& d, uint32_t batch, uint32_t head, uint32_t row, uint32_t column) {
  const Four words = plain_philox({column / 16, row, d.first_sequence + batch, d.place + head},
                                  {static_cast<uint32_t>(d.key), static_cast<uint32_t>(d.key >> 32)}, 7);
  int byte = 0;
  for (int i = 0; i < 8; ++i) byte |= static_cast<int>(words[i / 2] >> (16 * (i % 2) + column % 16) & 1) << i;
  return byte;
}

bool kept(const Dropout& d, uint32_t batch, uint32_t head, uint32_t row, uint32_t column) {
  return DropoutMask(d).kept(batch, head, row, column / 32) >> column % 32 & 1;
}

TEST(Dropout, KeepsAColumnWhoseByteIsAtLeastTheThreshold) {
  for (int threshold = 0; threshold < Dropout::kResolution; ++threshold) {
    const Dropout d{.threshold = threshold,
                    .key = 0x0123456789abcdef + static_cast<uint64_t>(threshold),
                    .place = 9 * Dropout::kHeads,
                    .first_sequence = 0xfffffffe};
    for (const uint32_t batch : {0u, 3u})
      for (const uint32_t head : {0u, 11u, 65535u})
        for (const uint32_t row : {0u, 1u, 1u << 20})
          for (uint32_t column = 0; column < 70; ++column)
            EXPECT_EQ(kept(d, batch, head, row, column),
                      random_byte(d, batch, head, row, column) >= threshold)
                << threshold << " " << batch << " " << head << " " << row << " " << column;
  }
}

TEST(Dropout, AThresholdOfZeroIsNone) {
  EXPECT_FALSE(Dropout{});
  EXPECT_EQ(Dropout{}.scale(), 1);
  EXPECT_EQ(DropoutMask(Dropout{}).kept(1, 2, 3, 4), ~0u);
  EXPECT_TRUE(Dropout{.threshold = 1});
  EXPECT_EQ(Dropout{.threshold = 128}.scale(), 2);
  EXPECT_EQ(Dropout{.threshold = 255}.scale(), 256);
}

// A sum of squares over cells of which each has mean 1 and variance 2, as chi-square has with `cells` degrees
// of freedom: five deviations around its mean. Too even is as wrong as too uneven.
void expect_chi_square(double sum, double cells) { EXPECT_NEAR(sum, cells, 5 * std::sqrt(2 * cells)); }

TEST(Dropout, BytesAreUniform) {
  const Dropout d{.threshold = 1, .key = 42};
  std::array<double, 256> counts{};
  constexpr int kRows = 1024, kColumns = 512;
  for (uint32_t row = 0; row < kRows; ++row)
    for (uint32_t column = 0; column < kColumns; ++column) ++counts[random_byte(d, 0, 0, row, column)];
  constexpr double kWanted = kRows * kColumns / 256.0;
  double sum = 0;
  for (const double count : counts) sum += (count - kWanted) * (count - kWanted) / kWanted;
  expect_chi_square(sum, 255);
}

// In each of 32 columns and 32 places, rows of many sequences and heads
TEST(Dropout, DropsTheShareThatItSays) {
  for (const int threshold : {1, 26, 51, 128, 230, 255}) {
    SCOPED_TRACE(threshold);
    const double p = threshold / 256.0;
    double of_columns = 0, of_places = 0, all = 0;
    constexpr int kCells = 32, kDraws = 1024;
    std::array<double, kCells> columns{}, places{};
    for (uint32_t place = 0; place < kCells; ++place) {
      const Dropout d{.threshold = threshold, .key = 7, .place = place * Dropout::kHeads};
      for (uint32_t i = 0; i < kDraws; ++i) {
        const uint32_t dropped = ~DropoutMask(d).kept(i % 8, i / 8 % 16, i / 128, i % 3);
        for (uint32_t column = 0; column < kCells; ++column) {
          columns[column] += dropped >> column & 1;
          places[place] += dropped >> column & 1;
          all += dropped >> column & 1;
        }
      }
    }
    const auto square = [&](double count, double draws) {
      return (count - draws * p) * (count - draws * p) / (draws * p * (1 - p));
    };
    for (int cell = 0; cell < kCells; ++cell) {
      of_columns += square(columns[cell], kCells * kDraws);
      of_places += square(places[cell], kCells * kDraws);
    }
    expect_chi_square(of_columns, kCells);
    expect_chi_square(of_places, kCells);
    EXPECT_LT(square(all, kCells * kCells * kDraws), 5 * 5);
  }
}

struct At {
  uint32_t batch, head, row, column;
};

// The masks at a place and at its neighbour, over `kCount` places: the correlation of independent bits has a
// deviation of 1 / sqrt(kCount).
template <class Neighbour>  // (Dropout, At) of (Dropout, At)
void expect_independent(const char* what, const Neighbour& neighbour) {
  constexpr uint32_t kCount = 1 << 17;
  for (const int threshold : {26, 128}) {
    const Dropout d{
        .threshold = threshold, .key = 0x5eed, .place = 4 * Dropout::kHeads, .first_sequence = 64};
    const double p = threshold / 256.0;
    double sum = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      // Steps of 2, so that no pair shares a place with another pair in its direction
      const At at{i % 4 * 2, i / 4 % 8 * 2, i / 32 % 64 * 2, i / 2048 * 64 + i * 7 % 16};
      const auto [other, there] = neighbour(d, at);
      sum += (kept(d, at.batch, at.head, at.row, at.column) - (1 - p)) *
             (kept(other, there.batch, there.head, there.row, there.column) - (1 - p));
    }
    EXPECT_LT(std::abs(sum / (kCount * p * (1 - p))), 5 / std::sqrt(kCount)) << what << ", " << threshold;
  }
}

TEST(Dropout, NeighboursAreIndependent) {
  const auto moved = [](uint32_t batch, uint32_t head, uint32_t row, uint32_t column) {
    return [=](const Dropout& d, const At& at) {
      return std::pair{d, At{at.batch + batch, at.head + head, at.row + row, at.column + column}};
    };
  };
  expect_independent("the next column", moved(0, 0, 0, 1));
  expect_independent("the next unit", moved(0, 0, 0, 16));
  expect_independent("the next block", moved(0, 0, 0, 32));
  expect_independent("the next row", moved(0, 0, 1, 0));
  expect_independent("the next head", moved(0, 1, 0, 0));
  expect_independent("the next sequence", moved(1, 0, 0, 0));
  expect_independent("transposed", [](const Dropout& d, const At& at) {
    return std::pair{d, At{at.batch, at.head, at.column + 1, at.row}};
  });
  const auto changed = [](auto&& change) {
    return [=](Dropout d, const At& at) {
      change(d);
      return std::pair{d, at};
    };
  };
  expect_independent("the next place", changed([](Dropout& d) { d.place += Dropout::kHeads; }));
  expect_independent("the next key", changed([](Dropout& d) { ++d.key; }));
  expect_independent("a key with another upper half",
                     changed([](Dropout& d) { d.key ^= uint64_t{1} << 32; }));
}

// A batch that begins one sequence later holds the same sequences, one place earlier.
TEST(Dropout, SequencesCountAcrossBatches) {
  Dropout d{.threshold = 77, .key = 3, .place = Dropout::kHeads, .first_sequence = 10}, later = d;
  later.first_sequence += 5;
  for (uint32_t batch = 0; batch < 4; ++batch)
    for (uint32_t block = 0; block < 4; ++block)
      EXPECT_EQ(DropoutMask(later).kept(batch, 2, 9, block), DropoutMask(d).kept(batch + 5, 2, 9, block));
}

}  // namespace
}  // namespace tessera::testing

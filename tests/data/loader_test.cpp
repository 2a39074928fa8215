#include "data/loader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "data/document_index.h"
#include "kernels/base/no_target.h"
#include "tests/data/support.h"

namespace tessera {
namespace {

std::vector<int64_t> epoch_of(int64_t n, uint64_t seed, int64_t epoch, bool shuffle = true) {
  const SequenceOrder order(n, seed, shuffle);
  std::vector<int64_t> visited;
  for (int64_t i = 0; i < n; ++i) visited.push_back(order.at(epoch * n + i));
  return visited;
}

std::vector<int64_t> counting(int64_t n) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(SequenceOrder, EveryEpochIsAPermutation) {
  for (const int64_t n : {1, 2, 3, 4, 5, 10, 16, 17, 1000, 65536, 65537}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      for (const int64_t epoch : {0, 1, 1000}) {
        auto visited = epoch_of(n, seed, epoch);
        std::ranges::sort(visited);
        EXPECT_EQ(visited, counting(n)) << "n " << n << ", seed " << seed << ", epoch " << epoch;
      }
    }
  }
}

TEST(SequenceOrder, SeedsAndEpochsDiffer) {
  for (const int64_t n : {10, 1000, 65537}) {
    EXPECT_NE(epoch_of(n, 1, 0), epoch_of(n, 2, 0));
    EXPECT_NE(epoch_of(n, 1, 0), epoch_of(n, 1, 1));
    EXPECT_NE(epoch_of(n, 1, 0), epoch_of(n, 0, 1));  // a seed is not an offset of the epochs
    EXPECT_NE(epoch_of(n, 1, 0), counting(n));
    EXPECT_EQ(epoch_of(n, 1, 0), epoch_of(n, 1, 0));
  }
}

TEST(SequenceOrder, EveryOrderOfThreeTurnsUpAboutEquallyOften) {
  std::map<std::vector<int64_t>, int> seen;
  for (int64_t epoch = 0; epoch < 6000; ++epoch) ++seen[epoch_of(3, 42, epoch)];
  EXPECT_EQ(seen.size(), 6u);
  for (const auto& [order, times] : seen) EXPECT_NEAR(times, 1000, 200);
}

// Whether neighbours stay neighbours is what a weak mixing would show first.
TEST(SequenceOrder, NeighboursAreScattered) {
  const auto visited = epoch_of(65537, 3, 0);
  double distance = 0;
  for (size_t i = 1; i < visited.size(); ++i)
    distance += static_cast<double>(std::abs(visited[i] - visited[i - 1]));
  EXPECT_NEAR(distance / 65536, 65537 / 3.0, 500);  // the mean for a uniform permutation is n / 3
}

// These orders are what resumed runs rely on: a change here breaks the reproduction of every earlier run.
TEST(SequenceOrder, IsTheSameForever) {
  EXPECT_EQ(epoch_of(10, 42, 0), (std::vector<int64_t>{3, 1, 4, 8, 2, 6, 5, 7, 0, 9}));
  EXPECT_EQ(SequenceOrder(123'456'789'012, 7, true).at(1'000'000'000'000), 34'931'096'760);
}

TEST(SequenceOrder, UnshuffledCounts) { EXPECT_EQ(epoch_of(5, 9, 3, false), counting(5)); }

TEST(SequenceOrder, RefusesWhatIsNoOrder) {
  expect_error([] { SequenceOrder(0, 1, true); }, {"at least 1", "found 0"});
  expect_error([] { SequenceOrder(3, 1, true).at(-1); }, {"negative", "-1"});
}

class LoaderTest : public InTempFolder {
 protected:
  // Token i of the stream is i; shards of 7 tokens, so that most windows cross a border.
  TokenStream stream_of(int count) const {
    for (int first = 0; first < count; first += 7) {
      std::vector<uint32_t> tokens(static_cast<size_t>(std::min(7, count - first)));
      std::iota(tokens.begin(), tokens.end(), static_cast<uint32_t>(first));
      write(fmt::format("t_{:06}.bin", first), shard_bytes(tokens));
    }
    return TokenStream::open(folder_);
  }
};

Sequences fetch(const Loader& loader, int64_t position, int64_t count) {
  Sequences sequences;
  loader.fetch(position, count, sequences);
  return sequences;
}

TEST_F(LoaderTest, OfWideTokens) {
  write("a.bin", wide_shard_bytes({1, 70000, 3, 151935}));
  write("b.bin", wide_shard_bytes({65536, 6, 7}));
  auto stream = TokenStream::open(folder_);
  stream.require_tokens_below(151936);
  const Loader loader(
      {.stream = &stream, .first_token = 0, .token_count = 7, .sequence_length = 3, .shuffle = false});
  EXPECT_EQ(fetch(loader, 0, 2),
            (Sequences{{1, 70000, 3, 151935, 65536, 6}, {70000, 3, 151935, 65536, 6, 7}, {}}));
}

TEST_F(LoaderTest, TargetsAreTheTokensShiftedByOne) {
  const auto stream = stream_of(21);
  const Loader loader(
      {.stream = &stream, .first_token = 0, .token_count = 21, .sequence_length = 5, .shuffle = false});
  EXPECT_EQ(loader.sequences_per_epoch(), 4);  // (21 - 1) / 5: the last target is token 20
  EXPECT_EQ(fetch(loader, 1, 2),
            (Sequences{{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, {6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {}}));
  EXPECT_EQ(fetch(loader, 3, 1).targets.back(), 20);
  EXPECT_EQ(fetch(loader, 4, 1), fetch(loader, 0, 1));  // the next epoch
}

TEST_F(LoaderTest, CountsOnlyWholeWindows) {
  const auto stream = stream_of(30);
  const auto windows = [&](int64_t token_count) {
    return Loader({.stream = &stream, .first_token = 0, .token_count = token_count, .sequence_length = 5})
        .sequences_per_epoch();
  };
  EXPECT_EQ(windows(6), 1);
  EXPECT_EQ(windows(10), 1);
  EXPECT_EQ(windows(11), 2);
}

TEST_F(LoaderTest, StaysInsideItsRange) {
  const auto stream = stream_of(50);
  const Loader loader(
      {.stream = &stream, .first_token = 10, .token_count = 13, .sequence_length = 4, .seed = 1});
  const Sequences batch = fetch(loader, 0, 30);
  EXPECT_EQ(std::ranges::min(batch.tokens), 10);
  EXPECT_EQ(std::ranges::max(batch.targets), 22);
}

TEST_F(LoaderTest, EveryWindowOnceAnEpochAndAnotherOrderInTheNext) {
  const auto stream = stream_of(401);
  const Loader loader(
      {.stream = &stream, .first_token = 0, .token_count = 401, .sequence_length = 4, .seed = 5});
  const Sequences first = fetch(loader, 0, 100);
  Sequences second = fetch(loader, 100, 100);
  EXPECT_NE(first, second);
  std::ranges::sort(second.tokens);
  std::vector<int32_t> wanted(400);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(second.tokens, wanted);
}

// Resuming, and splitting a batch over ranks: only the position counts.
TEST_F(LoaderTest, TheSamePositionIsTheSameData) {
  const auto stream = stream_of(101);
  const LoaderOptions options = {
      .stream = &stream, .first_token = 0, .token_count = 101, .sequence_length = 4, .seed = 5};
  const Sequences whole = fetch(Loader(options), 0, 60);
  const Loader resumed(options);
  for (int64_t position = 59; position >= 0; --position) {
    const Sequences one = fetch(resumed, position, 1);
    EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.end(), whole.tokens.begin() + position * 4));
    EXPECT_TRUE(std::equal(one.targets.begin(), one.targets.end(), whole.targets.begin() + position * 4));
  }
}

// With the ring's seam too
TEST_F(LoaderTest, TargetsThatDoNotCountAreNone) {
  const TokenStream plain = stream_of(14);  // two shards of 7 tokens
  DocumentIndexWriter index({.folder = folder_, .prefix = "t", .tokens_per_shard = 7});
  index.append(14, {.starts = {0, 5}, .uncounted = {{0, 1}, {3, 2}, {6, 2}}});
  index.finish();
  std::filesystem::rename(folder_ / "t_000001.documents", folder_ / "t_000007.documents");
  const TokenStream stream = TokenStream::open(folder_);
  const LoaderOptions options{
      .stream = &stream, .first_token = 0, .token_count = 14, .sequence_length = 4, .seed = 2, .shift = true};
  LoaderOptions without = options;
  without.stream = &plain;
  const std::set<int32_t> uncounted = {0, 3, 4, 6, 7};
  const Sequences marked = fetch(Loader(options), 0, 30);
  Sequences wanted = fetch(Loader(without), 0, 30);
  for (int32_t& target : wanted.targets)
    if (uncounted.contains(target)) target = kNoTarget;
  EXPECT_EQ(marked, wanted);
}

class ShiftedWindows : public LoaderTest {
 protected:
  // Of the tokens 3 to 3 + count - 1 of a longer stream
  Loader loader(int64_t count, int64_t T, uint64_t seed, bool shuffle, bool shift = true) const {
    return Loader({.stream = &stream_,
                   .first_token = kFirst,
                   .token_count = count,
                   .sequence_length = T,
                   .seed = seed,
                   .shuffle = shuffle,
                   .shift = shift});
  }

  static constexpr int64_t kFirst = 3;
  const TokenStream stream_ = stream_of(130);
};

TEST_F(ShiftedWindows, TheFirstEpochIsTheUnshiftedOne) {
  for (const bool shuffle : {false, true})
    for (const int64_t count : {6, 7, 10, 11, 100}) {
      const Loader shifted = loader(count, 5, 8, shuffle), plain = loader(count, 5, 8, shuffle, false);
      const int64_t n = plain.sequences_per_epoch();
      ASSERT_EQ(shifted.sequences_per_epoch(), n) << count;
      EXPECT_EQ(fetch(shifted, 0, n), fetch(plain, 0, n)) << count;
      EXPECT_NE(fetch(shifted, n, 4 * n), fetch(plain, n, 4 * n)) << count;
    }
}

// With every remainder of N - 1 by T, in every epoch: each token at most once as an input, but for those
// between the last window and the first; and targets are the tokens that follow on the ring.
TEST_F(ShiftedWindows, HaveEveryTokenOnceButThoseBetweenTheLastAndTheFirst) {
  constexpr int64_t T = 5;
  for (int64_t count = T + 1; count <= 3 * T + 1; ++count) {
    const Loader shifted = loader(count, T, 2, true);
    const int64_t n = shifted.sequences_per_epoch();
    for (int64_t epoch = 0; epoch < 3 * T; ++epoch) {
      SCOPED_TRACE(fmt::format("{} tokens, epoch {}", count, epoch));
      Sequences batch = fetch(shifted, epoch * n, n);
      for (size_t i = 0; i < batch.tokens.size(); ++i)
        ASSERT_EQ(batch.targets[i], (batch.tokens[i] - kFirst + 1) % count + kFirst);
      std::vector<int32_t> wanted;
      for (int64_t i = 0; i < n * T; ++i)
        wanted.push_back(static_cast<int32_t>(kFirst + (shifted.offset(epoch) + i) % count));
      std::ranges::sort(wanted);
      std::ranges::sort(batch.tokens);
      ASSERT_EQ(batch.tokens, wanted);
      ASSERT_EQ(std::ranges::adjacent_find(wanted), wanted.end());
    }
  }
}

// The window that contains the seam, and the text as it is read around it
TEST_F(ShiftedWindows, AnEpochIsTheRingFromItsOffsetOn) {
  const Loader shifted = loader(12, 4, 7, false);  // two windows, and 4 tokens left out
  const int64_t n = shifted.sequences_per_epoch();
  ASSERT_EQ(n, 2);
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    const auto token = [&](int64_t i) {
      return static_cast<int32_t>(kFirst + (shifted.offset(epoch) + i) % 12);
    };
    for (int64_t window = 0; window < n; ++window) {
      Sequences wanted;
      for (int64_t t = 0; t < 4; ++t) {
        wanted.tokens.push_back(token(4 * window + t));
        wanted.targets.push_back(token(4 * window + t + 1));
      }
      EXPECT_EQ(fetch(shifted, epoch * n + window, 1), wanted);
    }
  }
}

TEST_F(ShiftedWindows, OffsetsDependOnSeedAndEpochAlone) {
  const Loader shifted = loader(100, 8, 4, true), other_seed = loader(100, 8, 5, true);
  std::vector<int64_t> mine, others;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    mine.push_back(shifted.offset(epoch));
    others.push_back(other_seed.offset(epoch));
    EXPECT_EQ(loader(57, 8, 4, false).offset(epoch), mine.back());  // of any range, in any order
    EXPECT_EQ(loader(100, 8, 4, true, false).offset(epoch), 0);
  }
  EXPECT_NE(mine, others);
  expect_error([&] { shifted.offset(-1); }, {"negative", "-1"});
}

// Each offset once in T epochs; and which offset an epoch has is uniform over the seeds.
TEST_F(ShiftedWindows, OffsetsAreUniform) {
  constexpr int64_t T = 16, kSeeds = 4000;
  std::map<int64_t, std::map<int64_t, int>> times;  // [epoch][offset]
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Loader shifted = loader(100, T, seed, true);
    EXPECT_EQ(shifted.offset(0), 0);
    for (const int64_t block : {0, 5}) {
      std::vector<int64_t> offsets;
      for (int64_t i = 0; i < T; ++i) offsets.push_back(shifted.offset(block * T + i));
      std::ranges::sort(offsets);
      ASSERT_EQ(offsets, counting(T)) << "seed " << seed << ", block " << block;
    }
    for (const int64_t epoch : {1, 2, 15, 16, 1000}) ++times[epoch][shifted.offset(epoch)];
  }
  for (const auto& [epoch, of_offset] : times) {
    // Epoch 0 has 0, so the others of its block have one of T - 1 offsets.
    const int64_t kinds = epoch < T ? T - 1 : T;
    double chi_square = 0;
    for (const auto& [offset, count] : of_offset) {
      const double expected = static_cast<double>(kSeeds) / static_cast<double>(kinds);
      chi_square += (count - expected) * (count - expected) / expected;
    }
    EXPECT_EQ(std::ssize(of_offset), kinds) << "epoch " << epoch;
    EXPECT_LT(chi_square, 44.3) << "epoch " << epoch;  // one in 10,000 of 15 degrees of freedom is above
  }
}

// What ranks and a resumed run rely on, across epochs and the seam
TEST_F(ShiftedWindows, TheSamePositionIsTheSameData) {
  const Sequences whole = fetch(loader(23, 4, 9, true), 0, 60);
  const Loader resumed = loader(23, 4, 9, true);
  for (int64_t position = 58; position >= 0; position -= 2) {
    const Sequences two = fetch(resumed, position, 2);
    EXPECT_TRUE(std::ranges::equal(two.tokens, std::span(whole.tokens).subspan(position * 4, 8)));
    EXPECT_TRUE(std::ranges::equal(two.targets, std::span(whole.targets).subspan(position * 4, 8)));
  }
}

TEST_F(ShiftedWindows, OfOneWindowAreTheRingTurned) {
  const Loader shifted = loader(6, 5, 1, true);
  ASSERT_EQ(shifted.sequences_per_epoch(), 1);
  std::set<std::vector<int32_t>> seen;
  for (int64_t epoch = 0; epoch < 5; ++epoch) seen.insert(fetch(shifted, epoch, 1).tokens);
  EXPECT_EQ(seen, (std::set<std::vector<int32_t>>{
                      {3, 4, 5, 6, 7}, {4, 5, 6, 7, 8}, {5, 6, 7, 8, 3}, {6, 7, 8, 3, 4}, {7, 8, 3, 4, 5}}));
}

// These offsets are what resumed runs rely on: a change here breaks the reproduction of every earlier run.
TEST_F(ShiftedWindows, AreTheSameForever) {
  const Loader shifted = loader(100, 16, 42, true);
  std::vector<int64_t> offsets;
  for (int64_t epoch = 0; epoch < 8; ++epoch) offsets.push_back(shifted.offset(epoch));
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 5, 9, 13, 2, 10, 12, 8}));
  EXPECT_EQ(shifted.offset(1'000'000'008), 13);
}

TEST_F(LoaderTest, RefusesWhatCannotBeLoaded) {
  const auto stream = stream_of(20);
  const auto make = [&](int64_t first, int64_t count, int64_t T) {
    return Loader({.stream = &stream, .first_token = first, .token_count = count, .sequence_length = T});
  };
  expect_error([&] { make(0, 5, 5); }, {"at least 6", "found 5", folder_.native()});
  expect_error([&] { make(0, 0, 5); }, {"at least 6", "found 0"});
  expect_error([&] { make(0, 20, 0); }, {"sequence length", "found 0"});
  expect_error([&] { make(1, 20, 4); }, {"tokens 1 to 20", "20 tokens"});
  expect_error([&] { make(-1, 10, 4); }, {"tokens -1 to 8"});
  expect_error([&] { Loader({.sequence_length = 4}); }, {"needs a token stream"});
  const Loader loader = make(0, 20, 4);
  expect_error([&] { fetch(loader, -1, 1); }, {"negative"});
}

TEST(SplitTrainValidation, HoldsOutTheEnd) {
  const auto [train, validation] =
      split_train_validation({.token_count = 1001, .validation_fraction = 0.1, .sequence_length = 64});
  EXPECT_EQ(train.first_token, 0);
  EXPECT_EQ(train.token_count, 901);
  EXPECT_EQ(validation.first_token, 901);
  EXPECT_EQ(validation.token_count, 100);
}

TEST(SplitTrainValidation, RefusesPartsThatAreTooSmall) {
  const auto split = [](int64_t count, double fraction, int64_t T) {
    split_train_validation({.token_count = count, .validation_fraction = fraction, .sequence_length = T});
  };
  split(200, 0.5, 99);
  expect_error([&] { split(200, 0.5, 100); }, {"100 of the 200 tokens", "training", "takes 101"});
  expect_error([&] { split(1000, 0.01, 64); }, {"10 of the 1000 tokens", "validation", "takes 65"});
  expect_error([&] { split(1000, 0.99, 64); }, {"10 of the 1000 tokens", "training"});
  for (const double fraction : {0.0, 1.0, -0.1, 1.5, std::nan("")}) {
    expect_error([&] { split(1000, fraction, 8); }, {"between 0 and 1"});
  }
}

}  // namespace
}  // namespace tessera

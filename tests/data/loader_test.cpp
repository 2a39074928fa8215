#include "data/loader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

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

struct Batch {
  std::vector<int32_t> tokens, targets;
  bool operator==(const Batch&) const = default;
};

Batch fetch(const Loader& loader, int64_t position, int64_t count, int64_t T) {
  const auto size = static_cast<size_t>(count * T);
  Batch batch = {std::vector<int32_t>(size), std::vector<int32_t>(size)};
  loader.fetch(position, count, batch.tokens, batch.targets);
  return batch;
}

TEST_F(LoaderTest, OfWideTokens) {
  write("a.bin", wide_shard_bytes({1, 70000, 3, 151935}));
  write("b.bin", wide_shard_bytes({65536, 6, 7}));
  auto stream = TokenStream::open(folder_);
  stream.require_tokens_below(151936);
  const Loader loader(
      {.stream = &stream, .first_token = 0, .token_count = 7, .sequence_length = 3, .shuffle = false});
  EXPECT_EQ(fetch(loader, 0, 2, 3),
            (Batch{{1, 70000, 3, 151935, 65536, 6}, {70000, 3, 151935, 65536, 6, 7}}));
}

TEST_F(LoaderTest, TargetsAreTheTokensShiftedByOne) {
  const auto stream = stream_of(21);
  const Loader loader(
      {.stream = &stream, .first_token = 0, .token_count = 21, .sequence_length = 5, .shuffle = false});
  EXPECT_EQ(loader.sequences_per_epoch(), 4);  // (21 - 1) / 5: the last target is token 20
  EXPECT_EQ(fetch(loader, 1, 2, 5),
            (Batch{{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, {6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}));
  EXPECT_EQ(fetch(loader, 3, 1, 5).targets.back(), 20);
  EXPECT_EQ(fetch(loader, 4, 1, 5), fetch(loader, 0, 1, 5));  // the next epoch
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
  const Batch batch = fetch(loader, 0, 30, 4);
  EXPECT_EQ(std::ranges::min(batch.tokens), 10);
  EXPECT_EQ(std::ranges::max(batch.targets), 22);
}

TEST_F(LoaderTest, EveryWindowOnceAnEpochAndAnotherOrderInTheNext) {
  const auto stream = stream_of(401);
  const Loader loader(
      {.stream = &stream, .first_token = 0, .token_count = 401, .sequence_length = 4, .seed = 5});
  const Batch first = fetch(loader, 0, 100, 4);
  Batch second = fetch(loader, 100, 100, 4);
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
  const Batch whole = fetch(Loader(options), 0, 60, 4);
  const Loader resumed(options);
  for (int64_t position = 59; position >= 0; --position) {
    const Batch one = fetch(resumed, position, 1, 4);
    EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.end(), whole.tokens.begin() + position * 4));
    EXPECT_TRUE(std::equal(one.targets.begin(), one.targets.end(), whole.targets.begin() + position * 4));
  }
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
  expect_error([&] { fetch(loader, -1, 1, 4); }, {"negative"});
  expect_error([&] { fetch(loader, 0, 2, 3); }, {"2 sequences of length 4 need 8 tokens", "6 and 6"});
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
  expect_error([&] { split(200, 0.5, 100); }, {"100 of the 200 tokens are for training", "which takes 101"});
  expect_error([&] { split(1000, 0.01, 64); },
               {"10 of the 1000 tokens are for validation", "which takes 65"});
  expect_error([&] { split(1000, 0.99, 64); }, {"10 of the 1000 tokens are for training"});
  for (const double fraction : {0.0, 1.0, -0.1, 1.5, std::nan("")}) {
    expect_error([&] { split(1000, fraction, 8); }, {"between 0 and 1"});
  }
}

}  // namespace
}  // namespace tessera

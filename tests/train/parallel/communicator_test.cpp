// The communicator on the CPU: ranks are processes, and sums are compared with fp64.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>

#include "tests/rank_processes.h"
#include "tests/says.h"
#include "tests/support.h"
#include "tests/tolerances.h"
#include "train/parallel/make_communicator.h"

namespace tessera {
namespace {

using testing::floats;
using testing::HostTensors;
using testing::on_ranks;

constexpr int64_t kParts[] = {1, 7, 1000, 333'337};  // elements; the last in several of Gloo's pieces

class CommunicatorTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

// What every rank can compute of any rank's input
float value_of(int rank, int64_t i) {
  const Philox random(41, rank);
  return static_cast<float>(random.normal(i));
}

Tensor input(HostTensors& tensors, int rank, int64_t first, int64_t count) {
  const Tensor t = tensors.empty({count});
  for (int64_t i = 0; i < count; ++i) floats(t)[i] = value_of(rank, first + i);
  return t;
}

void expect_sums(const Tensor& sums, int64_t first, int size) {
  for (int64_t i = 0; i < sums.numel(); ++i) {
    double want = 0, magnitude = 0;
    for (int rank = 0; rank < size; ++rank) {
      want += value_of(rank, first + i);
      magnitude += std::abs(value_of(rank, first + i));
    }
    ASSERT_NEAR(floats(sums)[i], want, tolerance::of_sum(DType::kF32, size) * magnitude)
        << "element " << first + i;
  }
}

std::string bytes_of(const Tensor& t) { return {t.as<char>(), t.bytes()}; }

void expect_same_on_all(const Ranks& ranks, const Tensor& t) {
  for (const std::string& theirs : ranks.exchange(bytes_of(t))) EXPECT_TRUE(theirs == bytes_of(t));
}

TEST_P(CommunicatorTest, AllReduceIsTheSameSumEverywhereAndAlways) {
  on_ranks(GetParam(), [](const Ranks& ranks) {
    const auto backend = make_cpu_backend();
    const auto communicator = make_communicator(*backend, ranks);
    EXPECT_EQ(communicator->rank(), ranks.rank);
    EXPECT_EQ(communicator->size(), ranks.size);
    for (const int64_t count : kParts) {
      HostTensors tensors;
      const Tensor once = input(tensors, ranks.rank, 0, count), again = tensors.copy_of(once);
      communicator->all_reduce_sum({.tensor = once});
      expect_sums(once, 0, ranks.size);
      expect_same_on_all(ranks, once);
      communicator->all_reduce_sum({.tensor = again});
      EXPECT_EQ(bytes_of(once), bytes_of(again));
    }
    const Tensor none{nullptr, DType::kF32, {0}, Device::kCpu};
    communicator->all_reduce_sum({.tensor = none});
    EXPECT_GT(communicator->take_waited_seconds(), 0);
    EXPECT_EQ(communicator->take_waited_seconds(), 0);
    EXPECT_EQ(communicator->failure(), "");
  });
}

TEST_P(CommunicatorTest, ReduceScatterGivesEachRankItsSlice) {
  on_ranks(GetParam(), [](const Ranks& ranks) {
    const auto backend = make_cpu_backend();
    const auto communicator = make_communicator(*backend, ranks);
    for (const int64_t count : kParts) {
      HostTensors tensors;
      const Tensor whole = input(tensors, ranks.rank, 0, ranks.size * count),
                   part = tensors.poisoned({count});
      const Tensor again = tensors.copy_of(whole), slice = again.rows(ranks.rank * count, count);
      communicator->reduce_scatter_sum({.whole = whole, .part = part});
      expect_sums(part, ranks.rank * count, ranks.size);
      communicator->reduce_scatter_sum({.whole = again, .part = slice});
      EXPECT_EQ(bytes_of(part), bytes_of(slice));
    }
  });
}

// Rank r sends to each other rank s two tensors, of r + 1 and of s + 2 elements; the last rank sends nothing.
TEST_P(CommunicatorTest, AllToAllBringsEachTensorToItsRank) {
  on_ranks(GetParam(), [](const Ranks& ranks) {
    const auto backend = make_cpu_backend();
    const auto communicator = make_communicator(*backend, ranks);
    HostTensors tensors;
    std::vector<AllToAll::Message> sends, receives;
    const auto count = [](int from, int to, int which) { return which == 0 ? from + 1 : to + 2; };
    const auto first = [](int from, int to, int which) { return 100 * from + 10 * to + 5 * which; };
    for (int other = 0; other < ranks.size; ++other)
      for (int which = 0; other != ranks.rank && which < 2; ++which) {
        if (ranks.rank + 1 < ranks.size)
          sends.push_back({other, input(tensors, ranks.rank, first(ranks.rank, other, which),
                                        count(ranks.rank, other, which))});
        if (other + 1 < ranks.size)
          receives.push_back({other, tensors.poisoned({count(other, ranks.rank, which)})});
      }
    communicator->all_to_all({.sends = sends, .receives = receives});
    for (size_t i = 0; i < receives.size(); ++i) {
      const auto& [from, tensor] = receives[i];
      for (int64_t k = 0; k < tensor.numel(); ++k)
        ASSERT_EQ(floats(tensor)[k], value_of(from, first(from, ranks.rank, static_cast<int>(i % 2)) + k));
    }
    EXPECT_EQ(communicator->started(), 1);
    const std::array to_itself = {AllToAll::Message{ranks.rank, tensors.zeros({1})}};
    EXPECT_THROW(communicator->all_to_all({.sends = to_itself, .receives = {}}), Error);
  });
}

TEST_P(CommunicatorTest, AllGatherPutsPartsInTheOrderOfRanks) {
  on_ranks(GetParam(), [](const Ranks& ranks) {
    const auto backend = make_cpu_backend();
    const auto communicator = make_communicator(*backend, ranks);
    for (const int64_t count : kParts) {
      HostTensors tensors;
      const Tensor part = input(tensors, ranks.rank, 0, count),
                   whole = tensors.poisoned({ranks.size * count});
      communicator->all_gather({.part = part, .whole = whole});
      for (int64_t i = 0; i < whole.numel(); ++i)
        ASSERT_EQ(floats(whole)[i], value_of(static_cast<int>(i / count), i % count)) << i;
      const Tensor again = tensors.poisoned({ranks.size * count}),
                   slice = again.rows(ranks.rank * count, count);
      std::memcpy(slice.data, part.data, part.bytes());
      communicator->all_gather({.part = slice, .whole = again});
      EXPECT_EQ(bytes_of(whole), bytes_of(again));
    }
  });
}

TEST_P(CommunicatorTest, AllGatherTakesBytes) {
  on_ranks(GetParam(), [](const Ranks& ranks) {
    const auto backend = make_cpu_backend();
    const auto communicator = make_communicator(*backend, ranks);
    HostTensors tensors;
    constexpr int64_t kCount = 7;
    const Tensor part = tensors.empty({kCount}, DType::kE4M3),
                 whole = tensors.empty({ranks.size * kCount}, DType::kE4M3);
    for (int64_t i = 0; i < kCount; ++i)
      part.as<uint8_t>()[i] = static_cast<uint8_t>(0xf8 + 16 * ranks.rank + i);  // NaN among them
    communicator->all_gather({.part = part, .whole = whole});
    for (int64_t i = 0; i < whole.numel(); ++i)
      ASSERT_EQ(whole.as<uint8_t>()[i], static_cast<uint8_t>(0xf8 + 16 * (i / kCount) + i % kCount)) << i;
    EXPECT_THROW(communicator->all_reduce_sum({.tensor = whole}), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorTest, ::testing::Values(2, 3, 4));

TEST_F(CommunicatorTest, RanksOnSeveralHostsMeetOverTheNamedInterface) {
  on_ranks(2, [](Ranks ranks) {
    ranks.interface = "lo";  // as find_network() says
    const auto backend = make_cpu_backend();
    const auto communicator = make_communicator(*backend, ranks);
    HostTensors tensors;
    const Tensor t = input(tensors, ranks.rank, 0, 100);
    communicator->all_reduce_sum({.tensor = t});
    expect_sums(t, 0, ranks.size);
  });
}

// Runs one all-reduce of three ranks, then a second that rank 1 does not take part in.
void expect_refusal_within(double seconds, void (*leave)(Communicator&, const Tensor&)) {
  on_ranks(3, [&](Ranks ranks) {
    ranks.time_limit_seconds = seconds;
    const auto backend = make_cpu_backend();
    const auto communicator = make_communicator(*backend, ranks);
    HostTensors tensors;
    const Tensor t = tensors.zeros({20'000'000});
    communicator->all_reduce_sum({.tensor = t});
    if (ranks.rank == 1) return leave(*communicator, t);
    const auto start = std::chrono::steady_clock::now();
    try {
      for (int i = 0; i < 2; ++i) communicator->all_reduce_sum({.tensor = t});
      ADD_FAILURE() << "the collective ended without rank 1";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("all_reduce_sum failed at rank"), std::string::npos)
          << error.what();
    }
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 3 * seconds);
  });
}

TEST_F(CommunicatorTest, APeerThatDiesIsAnErrorWithinTheTimeLimit) {
  expect_refusal_within(2, [](Communicator&, const Tensor&) { _exit(testing::kRankDone); });
}
TEST_F(CommunicatorTest, APeerThatDiesAmidACollectiveIsAnError) {
  expect_refusal_within(2, [](Communicator& communicator, const Tensor& t) {
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      _exit(testing::kRankDone);
    }).detach();
    for (;;) communicator.all_reduce_sum({.tensor = t});
  });
}
TEST_F(CommunicatorTest, APeerThatHangsIsAnErrorWithinTheTimeLimit) {
  expect_refusal_within(
      2, [](Communicator&, const Tensor&) { std::this_thread::sleep_for(std::chrono::seconds(7)); });
}

std::string message_of(const std::function<void()>& refused) {
  try {
    refused();
  } catch (const Error& error) {
    return error.what();
  }
  return "was not refused";
}

void expect_refusal(const std::function<void()>& refused, std::initializer_list<std::string_view> facts) {
  EXPECT_TRUE(says(message_of(refused), facts));
}

TEST(Communicator, ASingleRankNeedsNobody) {
  const auto backend = make_cpu_backend();
  const auto communicator = make_communicator(*backend, {});
  HostTensors tensors;
  const Tensor whole = tensors.normal({5}), before = tensors.copy_of(whole), part = tensors.poisoned({5});
  communicator->all_reduce_sum({.tensor = whole});
  EXPECT_EQ(bytes_of(whole), bytes_of(before));
  communicator->reduce_scatter_sum({.whole = whole, .part = part});
  EXPECT_EQ(bytes_of(part), bytes_of(before));
  communicator->reduce_scatter_sum({.whole = whole, .part = whole});
  EXPECT_EQ(bytes_of(whole), bytes_of(before));
  const Tensor gathered = tensors.poisoned({5});
  communicator->all_gather({.part = part, .whole = gathered});
  EXPECT_EQ(bytes_of(gathered), bytes_of(before));
  communicator->wait();
  communicator->synchronize();
  EXPECT_EQ(communicator->take_waited_seconds(), 0);
}

TEST(Communicator, RefusesWhatDoesNotFit) {
  const auto communicator = make_plan_communicator(Device::kCpu, 1, 3);
  HostTensors tensors;
  const Tensor six = tensors.zeros({6}), seven = tensors.zeros({7}), two = tensors.zeros({2});
  const Tensor tokens = tensors.tokens({6}, 5), bf16 = tensors.empty({6}, DType::kBF16);
  expect_refusal([&] { communicator->all_reduce_sum({.tensor = {}}); },
                 {"all_reduce_sum: tensor", "fp32 on cpu"});
  expect_refusal([&] { communicator->all_reduce_sum({.tensor = bf16}); }, {"fp32 on cpu", "found bf16 [6]"});
  expect_refusal([&] { communicator->all_reduce_sum({.tensor = tokens}); }, {"found int32 [6]"});
  expect_refusal([&] { communicator->all_reduce_sum({.tensor = six, .sums = six}); }, {"sums", "bf16 alone"});
  expect_refusal([&] { communicator->reduce_scatter_sum({.whole = seven, .part = two}); },
                 {"a multiple of 3 ranks"});
  expect_refusal([&] { communicator->reduce_scatter_sum({.whole = six, .part = six}); },
                 {"part", "2 elements of fp32 on cpu", "found fp32 [6]"});
  expect_refusal([&] { communicator->reduce_scatter_sum({.whole = six, .part = six.rows(0, 2)}); },
                 {"rank 1's own slice"});
  expect_refusal([&] { communicator->all_gather({.part = six.rows(3, 2), .whole = six}); },
                 {"rank 1's own slice"});
  expect_refusal([&] { communicator->all_gather({.part = two, .whole = seven}); }, {"whole", "6 elements"});
  communicator->all_gather({.part = six.rows(2, 2), .whole = six});
  communicator->all_gather({.part = two, .whole = six});

  const auto on_cuda = make_plan_communicator(Device::kCuda, 1, 3);
  Arena plan = Arena::plan(Device::kCuda);
  const auto planned = [&](DType dtype, int64_t count) {
    return plan.alloc(MemoryTag::kData, "test", dtype, {count});
  };
  const Tensor whole = planned(DType::kBF16, 6), sums = planned(DType::kF32, 6);
  on_cuda->reduce_scatter_sum({.whole = whole, .part = planned(DType::kF32, 2), .sums = sums});
  on_cuda->all_reduce_sum({.tensor = whole, .sums = sums});
  expect_refusal(
      [&] { on_cuda->reduce_scatter_sum({.whole = whole, .part = planned(DType::kBF16, 2), .sums = sums}); },
      {"part", "2 elements of fp32 on cuda"});
  expect_refusal([&] { on_cuda->all_reduce_sum({.tensor = whole, .sums = planned(DType::kF32, 5)}); },
                 {"sums", "6 elements of fp32 on cuda"});

  expect_refusal([] { make_plan_communicator(Device::kCpu, 3, 3); }, {"found rank 3 of 3"});
  const auto backend = make_cpu_backend();
  expect_refusal([&] { make_communicator(*backend, {.rank = 0, .size = 2}); }, {"exchange"});
}

}  // namespace
}  // namespace tessera

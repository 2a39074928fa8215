// The communicator on CUDA: as many ranks as there are GPUs, each a process; and NCCL itself with a single
// rank.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/base/random.h"
#include "tests/cuda/twin.h"
#include "tests/rank_processes.h"
#include "train/parallel/make_communicator.h"
#include "train/parallel/transports.h"

namespace tessera {
namespace {

using testing::on_ranks;

constexpr int64_t kParts[] = {1, 7, 1000, 1'333'337};  // elements; odd ones begin anywhere in a tensor

class CudaCommunicator : public CudaTest {
 protected:
  void SetUp() override {
    gpus_ = 0;
    if (cudaGetDeviceCount(&gpus_) != cudaSuccess || gpus_ == 0) GTEST_SKIP() << "no CUDA device";
    std::string why_not;
    if (!can_communicate(Device::kCuda, why_not)) GTEST_SKIP() << why_not;
    ASSERT_EQ(cudaSetDevice(std::max(0, testing::rank_of_process()) % gpus_), cudaSuccess);
    CudaTest::SetUp();
  }

  Twin input(DType dtype, int rank, int64_t first, int64_t count) {
    return with_values(dtype, {count}, [&](int64_t i) { return value_of(dtype, rank, first + i); });
  }

  // What every rank can compute of any rank's input
  static float value_of(DType dtype, int rank, int64_t i) {
    const auto value = static_cast<float>(Philox(41, rank).normal(i));
    return dtype == DType::kBF16 ? float_from_bf16(bf16_from_float(value)) : value;
  }

  // Rounded to `summed` at every addition, and once more if the result is held in another type
  void expect_sums(const Tensor& sums, DType inputs, DType summed, int64_t first, int size) {
    const std::vector<float> got = floats_of(sums);
    const double allowed =
        tolerance::of_sum(summed, size) + (sums.dtype == summed ? 0 : tolerance::of_sum(sums.dtype, 1));
    for (int64_t i = 0; i < sums.numel(); ++i) {
      double want = 0, magnitude = 0;
      for (int rank = 0; rank < size; ++rank) {
        const double value = value_of(inputs, rank, first + i);
        want += value;
        magnitude += std::abs(value);
      }
      ASSERT_TRUE(std::abs(got[i] - want) <= allowed * magnitude)
          << "element " << first + i << ": " << got[i] << ", wanted " << want;
    }
  }

  void expect_same_on_all(const Ranks& ranks, const Tensor& tensor) {
    const std::vector<char> mine = bytes_of(tensor);
    for (const std::string& theirs : ranks.exchange({mine.data(), mine.size()}))
      EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(), mine.begin(), mine.end())) << tensor.to_string();
  }

  void check_all_reduce(const Ranks& ranks, Communicator& communicator) {
    for (const DType dtype : kReal)
      for (const bool in_fp32 : {false, true})
        for (const int64_t count : kParts) {
          if (in_fp32 && dtype == DType::kF32) continue;
          SCOPED_TRACE(fmt::format("{} elements of {}{}", count, name_of(dtype), in_fp32 ? ", in fp32" : ""));
          const Twin once = input(dtype, ranks.rank, 0, count), again = input(dtype, ranks.rank, 0, count);
          const Tensor sums = in_fp32 ? output(DType::kF32, {count}).cuda : Tensor{};
          for (const Twin& tensor : {once, again}) {
            communicator.all_reduce_sum({.tensor = tensor.cuda, .sums = sums});
            communicator.wait();
            communicator.synchronize();
          }
          expect_sums(once.cuda, dtype, in_fp32 ? DType::kF32 : dtype, 0, ranks.size);
          expect_same_on_all(ranks, once.cuda);
          EXPECT_EQ(bytes_of(once.cuda), bytes_of(again.cuda)) << "other bits the second time";
        }
  }

  void check_reduce_scatter(const Ranks& ranks, Communicator& communicator) {
    for (const DType dtype : kReal)
      for (const bool in_fp32 : {false, true})
        for (const int64_t count : kParts) {
          if (in_fp32 && dtype == DType::kF32) continue;
          SCOPED_TRACE(fmt::format("{} elements of {}{}", count, name_of(dtype), in_fp32 ? ", in fp32" : ""));
          const DType summed = in_fp32 ? DType::kF32 : dtype;
          const int64_t first = ranks.rank * count, all = ranks.size * count;
          const Tensor part = output(summed, {count}).cuda;
          const Tensor whole = input(dtype, ranks.rank, 0, all).cuda;
          const Tensor again = input(dtype, ranks.rank, 0, all).cuda;
          const Tensor sums = in_fp32 ? output(DType::kF32, {all}).cuda : Tensor{};
          const Tensor slice = (in_fp32 ? sums : again).rows(first, count);
          communicator.reduce_scatter_sum({.whole = whole, .part = part, .sums = sums});
          communicator.reduce_scatter_sum({.whole = again, .part = slice, .sums = sums});
          communicator.wait();
          communicator.synchronize();
          expect_sums(part, dtype, summed, first, ranks.size);
          EXPECT_EQ(bytes_of(part), bytes_of(slice)) << "other bits in place";
        }
  }

  void check_all_gather(const Ranks& ranks, Communicator& communicator) {
    for (const DType dtype : kReal)
      for (const int64_t count : kParts) {
        SCOPED_TRACE(fmt::format("{} elements of {}", count, name_of(dtype)));
        const Twin part = input(dtype, ranks.rank, 0, count);
        const Tensor whole = output(dtype, {ranks.size * count}).cuda;
        const Tensor again = output(dtype, {ranks.size * count}).cuda;
        const Tensor slice = again.rows(ranks.rank * count, count);
        cuda().run(Copy{part.cuda, slice});
        communicator.all_gather({.part = part.cuda, .whole = whole});
        communicator.all_gather({.part = slice, .whole = again});
        communicator.wait();
        communicator.synchronize();
        const std::vector<float> got = floats_of(whole);
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_EQ(got[i], value_of(dtype, static_cast<int>(i / count), i % count)) << i;
        EXPECT_EQ(bytes_of(whole), bytes_of(again)) << "other bits in place";
      }
  }

  // Gathers what the backend writes late, and lets the backend read it at once: each must wait for the other.
  void check_order(const Ranks& ranks, Communicator& communicator) {
    constexpr int64_t kCount = 4 << 20, kWidth = 2048;
    const Twin late = input(DType::kF32, ranks.rank, 0, kCount);
    const Tensor part = output(DType::kF32, {kCount}).cuda;
    const Tensor whole = output(DType::kF32, {ranks.size * kCount}).cuda;
    const Tensor read = output(DType::kF32, {ranks.size * kCount}).cuda;
    const Tensor x = output(DType::kF32, {kWidth, kWidth}).cuda,
                 weight = output(DType::kF32, {kWidth, kWidth}).cuda;
    const Tensor y = output(DType::kF32, {kWidth, kWidth}).cuda;
    communicator.take_waited_seconds();
    for (int i = 0; i < 20; ++i)
      cuda().run(LinearForward{.x = x, .weight = weight, .y = y});  // some milliseconds
    cuda().run(Copy{late.cuda, part});
    communicator.all_gather({.part = part, .whole = whole});
    communicator.wait();
    cuda().run(Copy{whole, read});
    communicator.synchronize();
    const std::vector<float> got = floats_of(read);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], value_of(DType::kF32, static_cast<int>(i / kCount), i % kCount)) << i;
    EXPECT_GT(communicator.take_waited_seconds(), 0);
    EXPECT_EQ(communicator.take_waited_seconds(), 0);
    communicator.all_gather({.part = part, .whole = whole});
    EXPECT_EQ(communicator.take_waited_seconds(), 0) << "the backend did not wait";
    EXPECT_EQ(communicator.failure(), "");
  }

  void check_all(const Ranks& ranks, Communicator& communicator) {
    EXPECT_EQ(communicator.rank(), ranks.rank);
    EXPECT_EQ(communicator.size(), ranks.size);
    check_all_reduce(ranks, communicator);
    check_reduce_scatter(ranks, communicator);
    check_all_gather(ranks, communicator);
    check_order(ranks, communicator);
  }

  // An all-reduce that rank 1 does not take part in
  void expect_refusal_without_rank_1(void (*leave)()) {
    on_ranks(gpus_, [&](Ranks ranks) {
      ranks.time_limit_seconds = 15;  // NCCL's ranks need some seconds to meet
      const auto communicator = make_communicator(cuda().backend(), ranks);
      const Tensor tensor = input(DType::kF32, ranks.rank, 0, 100'000).cuda;
      communicator->all_reduce_sum({.tensor = tensor});
      communicator->synchronize();
      ranks.exchange("");  // rank 1 leaves only when nobody needs it for the first
      if (ranks.rank == 1) return leave();
      const auto start = std::chrono::steady_clock::now();
      const std::string message = message_of([&] {
        communicator->all_reduce_sum({.tensor = tensor});
        communicator->wait();
        communicator->synchronize();
      });
      EXPECT_NE(message.find(fmt::format("at rank {} of {}", ranks.rank, ranks.size)), std::string::npos)
          << message;
      EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20);
    });
  }

  int gpus_ = 0;
};

TEST_F(CudaCommunicator, ASingleRankThroughNccl) {
  const Ranks alone = {.exchange = [](std::string_view mine) { return std::vector{std::string(mine)}; }};
  check_all(alone, *make_nccl_communicator(cuda().backend(), alone));
}

TEST_F(CudaCommunicator, ASingleRankAlone) {
  const Ranks alone = {.exchange = [](std::string_view mine) { return std::vector{std::string(mine)}; }};
  const auto communicator = make_communicator(cuda().backend(), alone);
  check_all_reduce(alone, *communicator);
  check_reduce_scatter(alone, *communicator);
  check_all_gather(alone, *communicator);
}

TEST_F(CudaCommunicator, ARankOnEveryGpu) {
  if (gpus_ < 2) GTEST_SKIP() << "needs 2 GPUs or more, found " << gpus_;
  on_ranks(gpus_, [&](const Ranks& ranks) { check_all(ranks, *make_communicator(cuda().backend(), ranks)); });
}

TEST_F(CudaCommunicator, APeerThatDiesIsAnErrorWithinTheTimeLimit) {
  if (gpus_ < 2) GTEST_SKIP() << "needs 2 GPUs or more, found " << gpus_;
  expect_refusal_without_rank_1([] { _exit(testing::kRankDone); });
}

TEST_F(CudaCommunicator, APeerThatHangsIsAnErrorWithinTheTimeLimit) {
  if (gpus_ < 2) GTEST_SKIP() << "needs 2 GPUs or more, found " << gpus_;
  expect_refusal_without_rank_1([] { std::this_thread::sleep_for(std::chrono::seconds(30)); });
}

TEST_F(CudaCommunicator, RefusesTwoRanksOnOneGpu) {
  on_ranks(2, [&](const Ranks& ranks) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    const auto backend = make_cuda_backend();
    const std::string message = message_of([&] { make_communicator(*backend, ranks); });
    EXPECT_NE(message.find("ranks 0 and 1"), std::string::npos) << message;
  });
}

}  // namespace
}  // namespace tessera

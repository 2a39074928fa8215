// What a kernel may expect of the emulated GPU.
#include "tests/emulator/gpu.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/hopper/ptx.cuh"

namespace emulator {
namespace {

namespace ptx = tessera::ptx;

Grid grid_of(unsigned blocks, unsigned threads) { return {.blocks = {blocks}, .threads = {threads}}; }

TEST(EmulatedGpu, EveryThreadRunsOnce) {
  const Grid grid{.blocks = {3, 2, 5}, .threads = {7, 3, 2}};
  std::vector<std::atomic<int>> runs(static_cast<size_t>(grid.blocks.count() * grid.threads.count()));
  run(grid, [&] {
    const unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x,
                   t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    ++runs[b * 42 + t];
  });
  for (const auto& count : runs) EXPECT_EQ(count, 1);
}

TEST(EmulatedGpu, ABarrierShowsWhatAllWrote) {
  std::vector<int> sums(9);
  run(grid_of(9, 100), [&] {
    static thread_local int numbers[100];
    numbers[threadIdx.x] = static_cast<int>(threadIdx.x + blockIdx.x);
    if (threadIdx.x >= 90) return;  // those that ended count no more
    __syncthreads();
    if (threadIdx.x == 0) sums[blockIdx.x] = std::accumulate(numbers, numbers + 100, 0);
  });
  for (int b = 0; b < 9; ++b) EXPECT_EQ(sums[static_cast<size_t>(b)], 4950 + 100 * b);
}

TEST(EmulatedGpu, LanesExchangeWithinTheirMask) {
  std::vector<int> up(32), halves(32), votes(32);
  run(grid_of(1, 32), [&] {
    const auto lane = threadIdx.x;
    const int mine = static_cast<int>(lane);
    up[lane] = __shfl_up_sync(~0u, mine, 3);
    const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    for (int turn = 0; turn < (lane < 16 ? 5 : 2); ++turn) halves[lane] = __reduce_add_sync(half, mine);
    votes[lane] = static_cast<int>(__ballot_sync(~0u, mine % 2 == 0));
  });
  for (int i = 0; i < 32; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(up[at], i < 3 ? i : i - 3);
    EXPECT_EQ(halves[at], i < 16 ? 120 : 376);
    EXPECT_EQ(votes[at], 0x55555555);
  }
}

TEST(EmulatedGpu, BlocksOfALaunchMayWaitForEachOther) {
  std::vector<uint32_t> turns(kMultiprocessors);
  run(grid_of(kMultiprocessors, 2), [&] {
    if (threadIdx.x != 0) return;
    const unsigned next = (blockIdx.x + 1) % kMultiprocessors;
    for (uint32_t turn = 1; turn <= 3; ++turn) {
      ptx::red_add_release(&turns[blockIdx.x], 1);
      while (ptx::load_acquire(&turns[next]) < turn) {
      }
    }
  });
  EXPECT_EQ(turns, std::vector<uint32_t>(kMultiprocessors, 3));
}

TEST(EmulatedGpu, AnMbarrierCountsArrivalsAndBytes) {
  std::vector<float> from(64), to(64);
  std::iota(from.begin(), from.end(), 1.0f);
  Grid grid = grid_of(1, 64);
  grid.shared_bytes = 1024;
  run(grid, [&] {
    const uint32_t memory = shared_address(dynamic_shared()), full = memory + 512;
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(full, 2);
      ptx::mbarrier_arrive_expect(full, 256);
      ptx::load_bytes(memory, from.data(), 256, full);
    }
    __syncthreads();
    if (threadIdx.x == 63) ptx::mbarrier_arrive(full);
    ptx::mbarrier_wait(full, 0);
    to[threadIdx.x] = ptx::load_shared_float(memory + 4 * threadIdx.x);
  });
  EXPECT_EQ(from, to);
}

TEST(EmulatedGpu, ABlockOfAClusterFillsTheOthersMemory) {
  Grid grid = grid_of(4, 32);
  grid.cluster = 2;
  grid.shared_bytes = 64;
  std::vector<int> ranks(4);
  run(grid, [&] {
    const uint32_t memory = shared_address(dynamic_shared());
    if (threadIdx.x == 0) ptx::mbarrier_init(memory, 1);
    ptx::cluster_sync();
    const uint32_t rank = ptx::cluster_rank();
    if (threadIdx.x == 0) ptx::mbarrier_arrive_at(memory, 1 - rank);
    ptx::mbarrier_wait(memory, 0);
    if (threadIdx.x == 0) ranks[blockIdx.x] = static_cast<int>(rank);
    ptx::cluster_sync();
  });
  EXPECT_EQ(ranks, (std::vector{0, 1, 0, 1}));
}

using EmulatedGpuDeathTest = ::testing::Test;

TEST(EmulatedGpuDeathTest, ThreadsThatWaitForNothingAreNamed) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(run(grid_of(2, 64), [] { barrier(3, 128, true); }),
               "nothing happens any more.*\n.*from 0 0 0 on: barrier 3");
}

TEST(EmulatedGpuDeathTest, LanesThatComeToDifferentOperationsAreRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      run(grid_of(1, 32), [] { threadIdx.x == 5 ? __syncwarp() : void(__shfl_sync(~0u, threadIdx.x, 0)); }),
      "different operations");
}

__global__ void set_to_one(int* number) { *number = 1; }

TEST(EmulatedGpuDeathTest, AKernelIsGivenNoMemoryOfTheHost) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  int number = 0;
  EXPECT_DEATH(set_to_one->*Launch(1, 1)(&number), "a kernel .* memory of the host");
}

TEST(EmulatedGpuDeathTest, AGuardedHostCannotTouchMemoryOfTheGpu) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  int* number = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&number), sizeof *number), cudaSuccess);
  setenv("TESSERA_EMULATOR_GUARD", "on", 1);  // for the process that dies
  EXPECT_DEATH(*number = 1, "memory of the GPU, byte 0 .* 4");
  unsetenv("TESSERA_EMULATOR_GUARD");
  cudaFree(number);
}

}  // namespace
}  // namespace emulator

// What the thread sanitizer finds on the emulated GPU, and what it must not.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/emulator/gpu.h"

namespace emulator {
namespace {

Grid grid_of(unsigned blocks, unsigned threads) { return {.blocks = {blocks}, .threads = {threads}}; }

// A process that runs `work` ends as one does in which races were found.
void expect_race(const std::function<void()>& work) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        work();
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "data race");
}

enum class Order { kNone, kShuffle, kWarp, kBlock };

// Each thread reads what its neighbour wrote to shared memory.
int sum_of_neighbours(Order order) {
  std::vector<int> read(32);
  run(grid_of(1, 32), [&] {
    static thread_local int numbers[32];
    const unsigned me = threadIdx.x;
    numbers[me] = static_cast<int>(me);
    if (order == Order::kShuffle) __shfl_sync(~0u, me, 0);
    if (order == Order::kWarp) __syncwarp();
    if (order == Order::kBlock) __syncthreads();
    read[me] = numbers[(me + 1) % 32];
  });
  return read[0];
}

TEST(EmulatedRacesDeathTest, ABarrierThatIsMissingIsFound) {
  expect_race([] { sum_of_neighbours(Order::kNone); });
}
TEST(EmulatedRacesDeathTest, AShuffleOrdersNoMemory) {
  expect_race([] { sum_of_neighbours(Order::kShuffle); });
}
TEST(EmulatedRaces, BarriersOrderMemory) {
  EXPECT_EQ(sum_of_neighbours(Order::kWarp), 1);
  EXPECT_EQ(sum_of_neighbours(Order::kBlock), 1);
}

TEST(EmulatedRacesDeathTest, BlocksThatWriteTheSameElementAreFound) {
  expect_race([] {
    std::vector<int> sums(1);
    run(grid_of(64, 1), [&] { sums[0] += 1; });
  });
}
TEST(EmulatedRaces, AtomicsOfBlocksAreNone) {
  std::vector<int> sums(1);
  run(grid_of(64, 1), [&] { atomicAdd(&sums[0], 1); });
  EXPECT_EQ(sums[0], 64);
}

// Each block adds one where the other is to add one next time.
__global__ void add_one(int* numbers, unsigned turn) { ++numbers[(blockIdx.x + turn) % 2]; }

// A kernel on each of two streams, the second after an event of the first if it `waits`
int add_on_two_streams(bool waits) {
  cudaStream_t streams[2];
  cudaEvent_t event;
  int *numbers, sums[2];
  for (auto& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreate(&event);
  cudaMalloc(reinterpret_cast<void**>(&numbers), sizeof sums);
  cudaMemsetAsync(numbers, 0, sizeof sums, streams[0]);
  Launch launch(2, 1, 0, streams[0]);
  add_one->*launch(numbers, 0u);
  cudaEventRecord(event, streams[0]);
  if (waits) cudaStreamWaitEvent(streams[1], event, 0);
  launch.config.stream = streams[1];
  add_one->*launch(numbers, 1u);
  cudaMemcpyAsync(sums, numbers, sizeof sums, cudaMemcpyDefault, streams[1]);
  cudaStreamSynchronize(streams[1]);
  cudaFree(numbers);
  cudaEventDestroy(event);
  for (auto& stream : streams) cudaStreamDestroy(stream);
  return sums[0] + sums[1];
}

TEST(EmulatedRacesDeathTest, StreamsWithoutAnEventAreFound) {
  expect_race([] { add_on_two_streams(false); });
}
TEST(EmulatedRaces, EventsOrderStreams) { EXPECT_EQ(add_on_two_streams(true), 4); }

}  // namespace
}  // namespace emulator

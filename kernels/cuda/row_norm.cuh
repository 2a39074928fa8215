// How LayerNorm and RMSNorm walk over rows. The grid fills the device once. A block walks over every
// gridDim.x-th group of rows; a thread owns one pack of channels of every row of the group. Several rows at
// a time, because then one barrier serves them all; and while a block works on one group, the next is on its
// way into shared memory. A thread copies there what it will read itself, so the staging needs no barrier.
// Sums over rows, for the parameters' gradients, stay in a thread's registers to the end.
#pragma once

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera {

// The largest block and its rows at a time. One wide row has enough loads, and blocks of a thousand threads
// have registers for no more.
struct Narrow {
  static constexpr int kThreads = 256, kRows = 4;
};
struct Wide {
  static constexpr int kThreads = 1024, kRows = 1;
};

// f with the element type and the kind of block that rows of C channels take, and the block's threads.
template <class F>
void with_block(const char* op, DType dtype, int64_t C, F&& f) {
  with_real_type(dtype, [&]<class T>() {
    constexpr int64_t kMaxChannels = Wide::kThreads * kPackWidth<T>;
    check(C <= kMaxChannels, "{}: supports up to {} channels in {}, found {}", op, kMaxChannels,
          name_of(dtype), C);
    const auto threads = static_cast<int>(cuda::divide_up(C, kPackWidth<T> * kWarp) * kWarp);
    threads <= Narrow::kThreads ? f.template operator()<T, Narrow>(threads)
                                : f.template operator()<T, Wide>(threads);
  });
}

// Lets the kernel stage two groups of `arrays` and says how many blocks a multiprocessor then holds.
template <class Block, class Kernel>
int prepare(Kernel kernel, int threads, int arrays, int& staged_bytes) {
  staged_bytes = 2 * arrays * Block::kRows * threads * static_cast<int>(sizeof(uint4));
  TESSERA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, staged_bytes));
  int resident = 0;
  TESSERA_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, staged_bytes));
  return resident;
}

}  // namespace tessera

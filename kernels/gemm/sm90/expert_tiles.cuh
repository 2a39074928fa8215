// What the kernels of experts share: the walk over the tiles of all experts, and the filler of gathered rows.
//
// They are the GEMM of kernel.cuh, whose tiles come from the offsets of experts: a CTA is a warpgroup that
// loads and two that multiply, in turns; the two CTAs of a cluster share b. TMA cannot gather rows. So the
// loading warpgroup copies gathered ones with cp.async, 16 bytes a thread and instruction, to where TMA would
// put them; its copies arrive at the slot's barrier by themselves. For wgmma these are ordinary
// writes, which the threads that multiply must order before it (fence_shared_for_async()).
#pragma once

#include "kernels/gemm/sm90/experts.h"
#include "kernels/gemm/sm90/kernel.cuh"

namespace tessera::gemm {

// Registers of a thread: a CTA begins with equal numbers, multiples of 8, and cannot take more than it gives
// back.
constexpr bool are_there(int of_producer, int of_consumer) {
  return of_producer + kConsumers * of_consumer <= 65536 / kThreads / 8 * 8 * (1 + kConsumers);
}

struct Gathered {
  const char* data;
  const int32_t* numbers;  // of rows
  int active, columns;     // a multiple of 8 elements of bf16, or pairs of FP8 values

  // The number of row r, that of the first row where it is not there. Its load takes long: nothing should be
  // computed of it at once.
  __device__ __forceinline__ int number_of(int row, bool is_there) const {
    return is_there ? numbers[row] : 0;
  }
  // The first of its chunks of 16 bytes
  __device__ __forceinline__ int chunk_of(int number) const { return number / active * (columns / 8); }
};

struct ExpertArguments {
  Arguments gemm;  // of all experts: maps of all rows and of all experts' b, n, column_tiles, steps, group
  const int32_t* offsets;
  int experts;
  Gathered gathered;
  int b_rows;  // of an expert's b in its map
  __nv_bfloat16* d;
  // Of weight gradients
  int gathered_tiles, other_tiles, other_columns;
  bool accumulate;
};

// A place in the tiles of all experts, those of an expert one after another
struct ExpertTile {
  const int32_t* offsets;
  int experts;
  int expert = -1, first = 0, rows = 0;  // the expert's rows
  int before = 0, count = 0;             // tiles of the experts before, and its own

  // Goes on to the expert that has tile `index`; false: all tiles are before
  template <class CountOf>
  __device__ __forceinline__ bool seek(int index, const CountOf& count_of) {
    while (index >= before + count) {
      if (++expert >= experts) return false;
      before += count;
      first = offsets[expert], rows = offsets[expert + 1] - first;
      count = count_of(rows);
    }
    return true;
  }
};

}  // namespace tessera::gemm

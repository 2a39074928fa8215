// LayerNorm and RMSNorm, which are one walk over rows: RMSNorm takes no mean and adds no bias.
//
// A team of threads owns a row. A thread holds every team's-width-th pack of it, up to kPacks of them, in
// registers: a row is read once and written once. While a team works on one row, its next ones are on their
// way into shared memory. A row of up to 1,024 channels in bf16 (768 in a backward) has a team of one warp,
// whose sums are shuffles without a barrier, and a block has several teams; wider rows take all warps of a
// block. Every team walks over as many rows as the others. Sums over rows, for the gradients of parameters,
// stay in a thread's registers to the end; then a block adds those of its teams and leaves them in
// partials[block].
#pragma once

#include <cuda_pipeline.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_values.cuh"
#include "kernels/ops.h"

namespace tessera::cuda::row_norm {

constexpr int kTeamsOfBlock = 2;                      // of one warp each
constexpr int kPacksOfWide = 2;                       // where a row takes several warps
constexpr int kWideThreads = 256, kMaxThreads = 512;  // of a team: as a rule at most, and for the widest rows

// A thread's packs of a row of C channels. Some threads may lack the last one, none another: with_team()
// sees to that.
template <class T, int kPacks, int kMostThreads>
struct Packs {
  static constexpr int kWidth = kPackWidth<T>, kCount = kPacks, kThreads = kMostThreads;
  static constexpr bool kTeams = kMostThreads == kWarp * kTeamsOfBlock;  // of one warp
  uint4 raw[kPacks];

  static __device__ __forceinline__ int channel(int i) {
    const int team = kTeams ? kWarp : static_cast<int>(blockDim.x);
    return (i * team + static_cast<int>(threadIdx.x)) * kWidth;
  }
  static __device__ __forceinline__ bool has(int i, int C) { return i + 1 < kPacks || channel(i) < C; }
  // f(i, channel) for each pack that exists
  template <class F>
  static __device__ __forceinline__ void each(int C, F&& f) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      if (has(i, C)) f(i, channel(i));
  }
  // 0 where there is no pack
  __device__ __forceinline__ void load(const T* row, int C) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) raw[i] = has(i, C) ? load_pack(row + channel(i)) : uint4{};
  }
};

// kRows rows of kTensors tensors, on their way into shared memory, 0 where a thread has no pack. A thread
// copies and reads its own packs alone, so no barrier is needed.
template <class Row, int kTensors, int kRows>
class RowRing {
  static constexpr int kPacks = Row::kCount, kTensorSize = kPacks * Row::kThreads,
                       kRowSize = kTensors * kTensorSize;

 public:
  static constexpr size_t kBytes = sizeof(uint4) * kRows * kRowSize;

  __device__ __forceinline__ RowRing() {
    extern __shared__ uint4 rows_on_their_way[];
    first_ = rows_on_their_way + threadIdx.y * blockDim.x + threadIdx.x;
    slot_ = first_;
  }
  // Into the slot of the oldest row, which has been read. After that of each tensor, end_load().
  template <class T>
  __device__ __forceinline__ void load(int tensor, const T* row, int C) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const bool has = Row::has(i, C);
      __pipeline_memcpy_async(place(tensor, i), has ? row + Row::channel(i) : row, sizeof(uint4),
                              has ? 0 : sizeof(uint4));
    }
  }
  __device__ __forceinline__ void end_load() {
    __pipeline_commit();
    slot_ = slot_ == first_ + (kRows - 1) * kRowSize ? first_ : slot_ + kRowSize;
  }
  // Waits for the oldest row.
  __device__ __forceinline__ void wait() const { __pipeline_wait_prior(kRows - 1); }
  __device__ __forceinline__ uint4 pack(int tensor, int i) const { return *place(tensor, i); }

 private:
  __device__ __forceinline__ uint4* place(int tensor, int i) const {
    return slot_ + tensor * kTensorSize + i * Row::kThreads;
  }
  uint4 *first_, *slot_;
};

// The rows of the calling thread's team: of each teams_of_grid-th
struct Rows {
  int64_t first, stride;
  __device__ Rows()
      : first(static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y),
        stride(static_cast<int64_t>(gridDim.x) * blockDim.y) {}
};

// Where a tensor's row n of C channels begins: they follow one another, or are some heads of tokens.
struct PackedRows {
  __device__ __forceinline__ int64_t x(int64_t n, int C) const { return n * C; }
  __device__ __forceinline__ int64_t y(int64_t n, int C) const { return n * C; }
  __device__ __forceinline__ int64_t dy(int64_t n, int C) const { return n * C; }
};
struct HeadRows {
  int64_t of_x, of_y, of_dy;  // elements from one row to the next; y: of a backward, dx
  __device__ __forceinline__ int64_t x(int64_t n, int) const { return n * of_x; }
  __device__ __forceinline__ int64_t y(int64_t n, int) const { return n * of_y; }
  __device__ __forceinline__ int64_t dy(int64_t n, int) const { return n * of_dy; }
};

// f<T, kPacks, kMostThreads>(block) with the threads of a block for rows of C channels
template <int kMostOfWarp, class F>
void with_team(const char* op, DType dtype, int64_t C, F&& f) {
  with_real_type(dtype, [&]<class T>() {
    constexpr int64_t kMaxChannels = int64_t{kMaxThreads} * kPacksOfWide * kPackWidth<T>;
    check(C <= kMaxChannels, "{}: supports up to {} channels in {}, found {}", op, kMaxChannels,
          name_of(dtype), C);
    const auto of_warp = static_cast<int>(divide_up(C, kPackWidth<T> * kWarp));  // packs of a lane
    constexpr int kThreads = kWarp * kTeamsOfBlock;
    const dim3 one_warp(kWarp, kTeamsOfBlock);
    static_assert(kMostOfWarp == 3 || kMostOfWarp == 4);
    if (of_warp == 1) return f.template operator()<T, 1, kThreads>(one_warp);
    if (of_warp == 2) return f.template operator()<T, 2, kThreads>(one_warp);
    if (of_warp == 3) return f.template operator()<T, 3, kThreads>(one_warp);
    if constexpr (kMostOfWarp == 4)
      if (of_warp == 4) return f.template operator()<T, 4, kThreads>(one_warp);
    const dim3 wide(static_cast<unsigned>(divide_up(of_warp, kPacksOfWide) * kWarp));
    wide.x <= kWideThreads ? f.template operator()<T, kPacksOfWide, kWideThreads>(wide)
                           : f.template operator()<T, kPacksOfWide, kMaxThreads>(wide);
  });
}

// The fewest blocks with which no team has more rows than with all that `multiprocessors` hold at a time.
// `shared`: bytes of a block's rows
template <class Kernel>
int64_t blocks_for(Kernel kernel, dim3 block, size_t shared, int64_t N, int multiprocessors, int64_t most) {
  TESSERA_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  int resident = 0;
  TESSERA_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel,
                                                             static_cast<int>(block.x * block.y), shared));
  const int64_t teams = block.y, rows_of_team = divide_up(
                                     N, teams * std::min<int64_t>(int64_t{resident} * multiprocessors, most));
  return divide_up(N, teams * rows_of_team);
}

// The rows of some heads: the first one, as [N, C], and their distance
struct RowsOfHeads {
  Tensor rows;
  int64_t stride;
  Tensor token;  // all heads of one, to be checked
  explicit RowsOfHeads(const Heads& heads)
      : rows{heads_of<void>(heads).data,
             heads.tensor.dtype,
             {heads.tensor.shape[0] * heads.tensor.shape[1], heads.count * heads.tensor.shape[3]},
             heads.tensor.device},
        stride(heads.tensor.shape[2] * heads.tensor.shape[3]),
        token{heads.tensor.data, heads.tensor.dtype, {1, stride}, heads.tensor.device} {}
};

}  // namespace tessera::cuda::row_norm

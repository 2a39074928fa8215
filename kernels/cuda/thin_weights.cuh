// The weight gradients: see thin_gemm.cuh
#pragma once

#include "kernels/cuda/thin_gemm.cuh"

namespace tessera::cuda::thin_gemm {

constexpr int kWeightsRows = 32, kWeightsColumns = kWarps * 32;  // rows at a time; columns of a block

template <class U, class D>
struct WeightsArgs {
  Experts experts;
  int64_t all_rows, matrix;  // of all experts; elements from an expert's d to the next
  Rows x;
  const U* u;  // [rows, rank]
  int rank;
  const float* weights = nullptr;    // w_r = weights[numbers[r]], with a U of bf16; null: 1
  const int32_t* numbers = nullptr;  // of weights
  D* d;                              // of each expert [columns, rank], or turned [rank, columns]
  bool accumulate;
  int64_t part = 0;  // above 0, of a single expert: a block has so many rows, and a d of its own
};

// A block's share of the rows, in stages of kWeightsRows
struct Share {
  int64_t begin, end;  // rows

  template <class U, class D>
  __device__ explicit Share(const WeightsArgs<U, D>& args, int number) {
    begin = args.part > 0 ? number * args.part : args.experts.offsets[number];
    end = args.part > 0 ? min(begin + args.part, args.all_rows) : args.experts.offsets[number + 1];
  }
  __device__ int stages() const { return static_cast<int>((end - begin + kWeightsRows - 1) / kWeightsRows); }
  __device__ int64_t row(int stage, int of_stage) const {
    return begin + int64_t{stage} * kWeightsRows + of_stage;
  }
};

// Copies stages of X, one after another. What says where the rows of a stage are is read a stage ahead.
struct XLoader {
  static constexpr int kPitch = kWeightsColumns + 8, kOfRow = kWeightsColumns / 8;
  static constexpr int kPacks = kWeightsRows * kOfRow / kThreads, kRowsAtOnce = kThreads / kOfRow;

  const Rows& x;
  const Share share;
  int64_t column;
  int stages;
  int32_t numbers[kPacks];

  static __device__ int own_row(int p) { return threadIdx.x / kOfRow + p * kRowsAtOnce; }
  __device__ XLoader(const Rows& of, const Share& own, int64_t first_column)
      : x(of), share(own), column(first_column + threadIdx.x % kOfRow * 8), stages(own.stages()) {
    find(0);
  }
  __device__ __forceinline__ void find(int stage) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t row = share.row(stage, own_row(p));
      if (x.numbers && row < share.end) numbers[p] = x.numbers[row];
    }
  }
  // Closes a group of cp.async, if there is no such stage an empty one.
  __device__ __forceinline__ void start(int stage, bf16* to) {
    if (stage < stages)
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t own = share.row(stage, own_row(p)), row = x.numbers ? numbers[p] / x.active : own;
        const bool is_there = own < share.end && column < x.columns;
        ptx::cp_async_16(shared_address(to + own_row(p) * kPitch + threadIdx.x % kOfRow * 8),
                         is_there ? x.data + row * x.columns + column : x.data, is_there);
      }
    ptx::cp_async_commit();
    find(stage + 1);
  }
};

// Takes stages of U, one after another, through registers
template <int kRank, class U, class D>
struct ULoader {
  static constexpr int kPitch = kRank + 8, kPartSize = kWeightsRows * kPitch;
  static constexpr int kOfRow = kRank / kPackWidth<U>, kPacks = kWeightsRows * kOfRow;
  static constexpr int kHeld = (kPacks + kThreads - 1) / kThreads;  // packs of a thread

  const WeightsArgs<U, D>& args;
  const Share share;
  int first_rank;
  uint4 held[kHeld];
  float weights[kHeld];
  int32_t numbers[kHeld];  // of the weights of the stage after the one that is held

  static __device__ int own_pack(int p) { return p * kThreads + static_cast<int>(threadIdx.x); }
  __device__ ULoader(const WeightsArgs<U, D>& of, const Share& own, int first)
      : args(of), share(own), first_rank(first) {
    find(0);
  }
  __device__ __forceinline__ int64_t row(int stage, int p) const {
    return share.row(stage, own_pack(p) / kOfRow);
  }
  __device__ __forceinline__ bool is_row(int stage, int p) const {
    return own_pack(p) < kPacks && row(stage, p) < share.end;
  }
  __device__ __forceinline__ void find(int stage) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p)
      if (args.weights && is_row(stage, p)) numbers[p] = args.numbers[row(stage, p)];
  }
  __device__ __forceinline__ void load(int stage) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      const int rank = first_rank + own_pack(p) % kOfRow * kPackWidth<U>;
      const bool is_there = is_row(stage, p) && rank < args.rank;
      held[p] = is_there ? load_pack(args.u + row(stage, p) * args.rank + rank) : uint4{};
      weights[p] = is_there && args.weights ? args.weights[numbers[p]] : 1.0f;
    }
    find(stage + 1);
  }
  __device__ __forceinline__ void store(bf16* to) {
#pragma unroll
    for (int p = 0; p < kHeld; ++p) {
      if (own_pack(p) >= kPacks) continue;
      if constexpr (std::is_same_v<U, bf16>) {
        if (args.weights) {
          float values[8];
          unpack<bf16>(held[p], values);
#pragma unroll
          for (float& value : values) value *= weights[p];
          held[p] = pack<bf16>(values);
        }
      }
      store_parts(held[p], U{}, to + own_pack(p) / kOfRow * kPitch + own_pack(p) % kOfRow * kPackWidth<U>,
                  kPartSize);
    }
  }
};

// kRank: the block's share of the rank
template <int kRank, class U, class D>
struct WeightsTile {
  using OfU = ULoader<kRank, U, D>;
  static constexpr int kStages = kRank == kMostRank ? 3 : 4;
  static constexpr int kXSize = kWeightsRows * XLoader::kPitch;
  static constexpr int kStage = kXSize + kPartsOf<U> * OfU::kPartSize;
  static constexpr int64_t kBytes = int64_t{2} * kStages * kStage;
};

template <bool kTurned, int kRank, class U, class D>
__global__ __launch_bounds__(kThreads) void weights_kernel(WeightsArgs<U, D> args) {
  using Tile = WeightsTile<kRank, U, D>;
  constexpr int kAhead = Tile::kStages - 1, kPitch = XLoader::kPitch, kRankPitch = Tile::OfU::kPitch;
  extern __shared__ __align__(16) uint8_t memory[];
  const auto x_at = [&](int stage) {  // [stages][X, then the parts of U]
    return reinterpret_cast<bf16*>(memory) + stage % Tile::kStages * Tile::kStage;
  };
  const auto u_at = [&](int stage) { return x_at(stage) + Tile::kXSize; };
  const int expert = blockIdx.y, first_rank = blockIdx.z * kRank;
  const int64_t first_column = int64_t{blockIdx.x} * kWeightsColumns;
  const Share share(args, expert);
  const int stages = share.stages();
  if (stages == 0 && args.accumulate) return;
  XLoader of_x(args.x, share, first_column);
  typename Tile::OfU of_u(args, share, first_rank);
  for (int stage = 0; stage < kAhead; ++stage) {
    of_x.start(stage, x_at(stage));
    of_u.load(stage);
    of_u.store(u_at(stage));
  }
  of_u.load(kAhead);

  const int lane = threadIdx.x % kWarp, warp_column = threadIdx.x / kWarp * 32;
  const int x_place = (lane / 16 * 8 + lane % 8) * kPitch + warp_column + lane / 8 % 2 * 8,
            u_place = (lane / 8 % 2 * 8 + lane % 8) * kRankPitch + lane / 16 * 8;
  float sums[2][kRank / 8][4] = {};
  for (int stage = 0; stage < stages; ++stage) {
    ptx::cp_async_wait<kAhead - 1>();
    __syncthreads();
    of_x.start(stage + kAhead, x_at(stage + kAhead));
    of_u.store(u_at(stage + kAhead));
    of_u.load(stage + kAhead + 1);
    const uint32_t x = shared_address(x_at(stage) + x_place), u = shared_address(u_at(stage) + u_place);
#pragma unroll
    for (int k = 0; k < kWeightsRows; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4_trans(a[i], x + 2 * (k * kPitch + 16 * i));
#pragma unroll
      for (int part = 0; part < kPartsOf<U>; ++part)
#pragma unroll
        for (int j = 0; j < kRank / 8; j += 2) {
          uint32_t b[4];
          ptx::ldmatrix_x4_trans(b, u + 2 * (part * Tile::OfU::kPartSize + k * kRankPitch + 8 * j));
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n) ptx::mma_m16n8k16(sums[i][j + n], a[i], b[2 * n], b[2 * n + 1]);
        }
    }
  }
  ptx::cp_async_wait<0>();
  D* d = args.d + expert * args.matrix;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < kRank / 8; ++j)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int64_t column = first_column + warp_column + 16 * i + n / 2 * 8 + lane / 4;
        const int rank = first_rank + 8 * j + lane % 4 * 2 + n % 2;
        if (column >= args.x.columns || rank >= args.rank) continue;
        D& to = d[kTurned ? rank * args.x.columns + column : column * args.rank + rank];
        to = static_cast<D>(sums[i][j][n] + (args.accumulate ? static_cast<float>(to) : 0.0f));
      }
}

template <bool kTurned, class U, class D>
void launch_weights(const WeightsArgs<U, D>& args, cudaStream_t stream) {
  with_rank(args.rank, [&]<int kRank>() {
    const dim3 grid(
        static_cast<unsigned>(divide_up(args.x.columns, kWeightsColumns)),
        static_cast<unsigned>(args.part > 0 ? divide_up(args.all_rows, args.part) : args.experts.count),
        static_cast<unsigned>(divide_up(args.rank, kRank)));
    const auto kernel = weights_kernel<kTurned, kRank, U, D>;
    constexpr auto kBytes = static_cast<int>(WeightsTile<kRank, U, D>::kBytes);
    TESSERA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<grid, kThreads, kBytes, stream>>>(args);
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace tessera::cuda::thin_gemm

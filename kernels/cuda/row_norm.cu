// LayerNorm and RMSNorm, which are one walk over rows: RMSNorm takes no mean and adds no bias.
//
// A team of threads owns a row. A thread holds every team's-width-th pack of it, up to kPacks of them, in
// registers: a row is read once and written once. While a team works on one row, its next ones are on their
// way into shared memory. A row of up to 1,024 channels in bf16 (768 in a backward) has a team of one warp,
// whose sums are shuffles without a barrier, and a block has several teams; wider rows take all warps of a
// block. Every team walks over as many rows as the others. Sums over rows, for the gradients of parameters,
// stay in a thread's registers to the end; then a block adds those of its teams and leaves them in
// partials[block].
#include <cuda_pipeline.h>

#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_values.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kTeamsOfBlock = 2;                                  // of one warp each
constexpr int kForwardPacksOfWarp = 4, kBackwardPacksOfWarp = 3;  // the most that a team of one warp holds
constexpr int kPacksOfWide = 2;                                   // where a row takes several warps
constexpr int kWideThreads = 256, kMaxThreads = 512;  // of a team: as a rule at most, and for the widest rows
// Rows of a team that are on their way: what hides the latency of memory at 4 TB/s and yet fits into 99 KB
constexpr int kForwardRows = 4;
template <int kMostThreads>
constexpr int kBackwardRows = kMostThreads > kWideThreads ? 2 : 3;
// Blocks of a multiprocessor that a backward's registers allow. With the most packs the compiler would take
// 205, and only 4 blocks would fit.
template <int kPacks>
constexpr int kBackwardBlocks = kPacks == kBackwardPacksOfWarp ? 6 : 1;

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

enum { kDy, kX, kAdd, kBackwardTensors };
template <class T, int kPacks, int kMostThreads>
using ForwardRing = RowRing<Packs<T, kPacks, kMostThreads>, 1, kForwardRows>;
template <class T, int kPacks, int kMostThreads>
using BackwardRing = RowRing<Packs<T, kPacks, kMostThreads>, kBackwardTensors, kBackwardRows<kMostThreads>>;

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

// y = norm(x) (offset + weight) + bias; without kMean no bias, and with kAdd y = add + that
template <class T, int kPacks, int kMostThreads, bool kMean, bool kAdd, class Fp8, class Place>
__global__ __launch_bounds__(kMostThreads) void norm_forward_kernel(const T* x, const T* weight,
                                                                    const T* bias, const T* add, T* y,
                                                                    float* means, float* rstds, float epsilon,
                                                                    float offset, int64_t N, int C,
                                                                    Fp8 fp8_values, Place place) {
  using Row = Packs<T, kPacks, kMostThreads>;
  constexpr int kWidth = Row::kWidth;
  // One for each sum of a row: the other's barrier lies between its reads and their overwriting.
  __shared__ float scratch[2][kMaxWarps][1];
  const float inverse_of_C = 1.0f / static_cast<float>(C);
  const Rows rows;
  ResultWriter<Fp8> result(fp8_values);
  ForwardRing<T, kPacks, kMostThreads> ring;
  const auto fetch = [&](int64_t n) {
    if (n < N) ring.load(0, x + place.x(n, C), C);
    ring.end_load();
  };
  for (int i = 0; i < kForwardRows; ++i) fetch(rows.first + i * rows.stride);
  Row w, b;
  w.load(weight, C);
  if constexpr (kMean) b.load(bias, C);
  int turn = 0;
  for (int64_t n = rows.first; n < N; n += rows.stride, turn ^= 1) {
    float value[kPacks][kWidth], factor[kWidth], term[kWidth];
    ring.wait();
#pragma unroll
    for (int i = 0; i < kPacks; ++i) unpack<T>(ring.pack(0, i), value[i]);
    fetch(n + kForwardRows * rows.stride);
    Row residual;
    if constexpr (kAdd) residual.load(add + n * C, C);

    float mean[1] = {}, rstd[1] = {};
    if constexpr (kMean) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) mean[0] += value[i][j];
      }
      block_sum(mean, scratch[0]);
      mean[0] *= inverse_of_C;
    }
    // The variance from the differences, not from the sum of squares, which cancels where the mean is large.
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const float centre = kMean && Row::has(i, C) ? mean[0] : 0.0f;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if constexpr (kMean) value[i][j] -= centre;
        rstd[0] += value[i][j] * value[i][j];
      }
    }
    block_sum(rstd, kMean ? scratch[1] : scratch[turn]);
    rstd[0] = rsqrtf(rstd[0] * inverse_of_C + epsilon);

    Row::each(C, [&](int i, int c) {
      unpack<T>(w.raw[i], factor);
      if constexpr (kMean) unpack<T>(b.raw[i], term);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        value[i][j] *= rstd[0];
        value[i][j] = kMean ? value[i][j] * factor[j] + term[j] : value[i][j] * (offset + factor[j]);
      }
      if constexpr (kAdd) {
        unpack<T>(residual.raw[i], term);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) value[i][j] += term[j];
      }
      result.store(y, place.y(n, C) + c, value[i]);
    });
    if (threadIdx.x > 0) continue;
    if constexpr (kMean) means[n] = mean[0];
    rstds[n] = rstd[0];
  }
  result.end();
}

// The sums over rows that a backward keeps: of dweight always
template <bool kMean, bool kSumDx>
struct Kept {
  enum { kBias = 1, kDx = kMean ? 2 : 1, kCount = 1 + kMean + kSumDx };
};

// Adds what the teams of a block have summed, and leaves it in partial[sum][C].
template <class Row, int kSums>
__device__ __forceinline__ void store_sums(float (&sums)[kSums][Row::kCount][Row::kWidth], float* partial,
                                           int C) {
  constexpr int kWidth = Row::kWidth;
  __shared__ float4
      others[kTeamsOfBlock - 1][Row::kTeams ? kSums : 1][Row::kTeams ? Row::kCount : 1][kWidth / 4][kWarp];
  if constexpr (Row::kTeams) {
    if (threadIdx.y > 0) {
#pragma unroll
      for (int s = 0; s < kSums; ++s)
        Row::each(C, [&](int i, int) {
#pragma unroll
          for (int q = 0; q < kWidth / 4; ++q) {
            const float* four = sums[s][i] + 4 * q;
            others[threadIdx.y - 1][s][i][q][threadIdx.x] = {four[0], four[1], four[2], four[3]};
          }
        });
    }
    __syncthreads();  // the first team reads what the others have written
    if (threadIdx.y > 0) return;
  }
#pragma unroll
  for (int s = 0; s < kSums; ++s)
    Row::each(C, [&](int i, int c) {
#pragma unroll
      for (int q = 0; q < kWidth / 4; ++q) {
        const float* mine = sums[s][i] + 4 * q;
        float4 sum{mine[0], mine[1], mine[2], mine[3]};
        if constexpr (Row::kTeams) {
#pragma unroll
          for (int team = 1; team < kTeamsOfBlock; ++team) {
            const float4 other = others[team - 1][s][i][q][threadIdx.x];
            sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
          }
        }
        *reinterpret_cast<float4*>(partial + s * C + c + 4 * q) = sum;
      }
    });
}

// With h = (x - mean) rstd, without kMean x rstd, and g = dy (offset + weight):
//   dx = rstd (g - mean(g) - h mean(g h)) + add,  without kMean no mean(g)
//   dweight += dy h,  dbias += dy,  dx_sum += dx
template <class T, int kPacks, int kMostThreads, bool kMean, bool kSumDx, class Fp8, class Place>
__global__ __launch_bounds__(kMostThreads, kBackwardBlocks<kPacks>) void norm_backward_kernel(
    const T* dy, const T* x, const T* weight, const float* means, const float* rstds, const T* add, T* dx,
    float* partials, float offset, int64_t N, int C, Fp8 fp8_values, Place place) {
  using Row = Packs<T, kPacks, kMostThreads>;
  using Sums = Kept<kMean, kSumDx>;
  constexpr int kWidth = Row::kWidth;
  // Two, in turn: the next row's barrier then lies between this row's reads and their overwriting.
  __shared__ float scratch[2][kMaxWarps][1 + kMean];
  const float inverse_of_C = 1.0f / static_cast<float>(C);
  const Rows rows;
  ResultWriter<Fp8> result(fp8_values);
  float sums[Sums::kCount][kPacks][kWidth] = {};
  constexpr int kRows = kBackwardRows<kMostThreads>;
  BackwardRing<T, kPacks, kMostThreads> ring;
  const auto fetch = [&](int64_t n) {
    if (n < N) {
      ring.load(kDy, dy + place.dy(n, C), C), ring.load(kX, x + place.x(n, C), C);
      if (add) ring.load(kAdd, add + n * C, C);
    }
    ring.end_load();
  };
  for (int i = 0; i < kRows; ++i) fetch(rows.first + i * rows.stride);
  Row w;
  w.load(weight, C);
  float next_rstd = 0, next_mean = 0;
  const auto fetch_statistics = [&](int64_t n) {
    if (n >= N) return;
    next_rstd = rstds[n];
    if constexpr (kMean) next_mean = means[n];
  };
  fetch_statistics(rows.first);
  int turn = 0;
  for (int64_t n = rows.first; n < N; n += rows.stride, turn ^= 1) {
    const float rstd = next_rstd, centre = -next_mean * rstd;
    fetch_statistics(n + rows.stride);
    ring.wait();
    float h[kPacks][kWidth], g[kPacks][kWidth], factor[kWidth];
    float mean[1 + kMean] = {};  // of g h, and of g
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      unpack<T>(ring.pack(kDy, i), g[i]), unpack<T>(ring.pack(kX, i), h[i]);
      unpack<T>(w.raw[i], factor);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        h[i][j] = h[i][j] * rstd + centre;
        sums[0][i][j] += g[i][j] * h[i][j];
        if constexpr (kMean) sums[Sums::kBias][i][j] += g[i][j];
        g[i][j] *= kMean ? factor[j] : offset + factor[j];
        mean[0] += g[i][j] * h[i][j];
        if constexpr (kMean) mean[1] += g[i][j];
      }
    }
    block_sum(mean, scratch[turn]);

    const float of_h = -rstd * mean[0] * inverse_of_C,
                of_row = kMean ? -rstd * mean[kMean] * inverse_of_C : 0;
    Row::each(C, [&](int i, int c) {
      float d[kWidth] = {};
      if (add) unpack<T>(ring.pack(kAdd, i), d);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        d[j] += g[i][j] * rstd + (h[i][j] * of_h + of_row);
        if constexpr (kSumDx) sums[Sums::kDx][i][j] += d[j];
      }
      result.store(dx, place.y(n, C) + c, d);
    });
    fetch(n + kRows * rows.stride);
  }
  result.end();
  store_sums<Row>(sums, partials + static_cast<int64_t>(blockIdx.x) * Sums::kCount * C, C);
}

// f<T, kPacks, kMostThreads>(block) with the threads of a block for rows of C channels
template <int kMostOfWarp, class F>
void with_team(const char* op, DType dtype, int64_t C, F&& f) {
  with_real_type(dtype, [&]<class T>() {
    constexpr int64_t kMaxChannels = int64_t{kMaxThreads} * kPacksOfWide * kPackWidth<T>;
    check(C <= kMaxChannels, "{}: supports up to {} channels in {}, found {}", op, kMaxChannels,
          name_of(dtype), C);
    const auto of_warp = static_cast<int>(cuda::divide_up(C, kPackWidth<T> * kWarp));  // packs of a lane
    constexpr int kThreads = kWarp * kTeamsOfBlock;
    const dim3 one_warp(kWarp, kTeamsOfBlock);
    static_assert(kMostOfWarp == 3 || kMostOfWarp == 4);
    if (of_warp == 1) return f.template operator()<T, 1, kThreads>(one_warp);
    if (of_warp == 2) return f.template operator()<T, 2, kThreads>(one_warp);
    if (of_warp == 3) return f.template operator()<T, 3, kThreads>(one_warp);
    if constexpr (kMostOfWarp == 4)
      if (of_warp == 4) return f.template operator()<T, 4, kThreads>(one_warp);
    const dim3 wide(static_cast<unsigned>(cuda::divide_up(of_warp, kPacksOfWide) * kWarp));
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
  const int64_t teams = block.y, rows_of_team = cuda::divide_up(
                                     N, teams * std::min<int64_t>(int64_t{resident} * multiprocessors, most));
  return cuda::divide_up(N, teams * rows_of_team);
}

struct Forward {
  Tensor x, weight, bias, add, y, mean, rstd;
  float epsilon, offset;
  Fp8Output fp8_y;
};
template <bool kMean, class Place>
void forward(const char* op, const Forward& a, Place place, int multiprocessors, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  with_team<kForwardPacksOfWarp>(op, a.x.dtype, C, [&]<class T, int kPacks, int kMostThreads>(dim3 block) {
    const auto run = [&]<bool kAdd, class Fp8>(Fp8 fp8_values) {
      const auto kernel = norm_forward_kernel<T, kPacks, kMostThreads, kMean, kAdd, Fp8, Place>;
      constexpr size_t shared = ForwardRing<T, kPacks, kMostThreads>::kBytes;
      kernel<<<blocks_for(kernel, block, shared, N, multiprocessors, INT32_MAX), block, shared, on.stream>>>(
          a.x.as<T>(), a.weight.as<T>(), a.bias.as<T>(), a.add.as<T>(), a.y.as<T>(), a.mean.as<float>(),
          a.rstd.as<float>(), a.epsilon, a.offset, N, static_cast<int>(C), fp8_values, place);
    };
    if constexpr (std::is_same_v<Place, HeadRows>) {
      run.template operator()<false>(NoFp8{});
    } else {
      if constexpr (!kMean)
        if (a.add) return run.template operator()<true>(NoFp8{});
      with_fp8<T, __NV_E4M3>(a.fp8_y, [&](auto fp8_values) { run.template operator()<false>(fp8_values); });
    }
  });
  TESSERA_CUDA_LAUNCHED();
}

struct Backward {
  Tensor dy, x, weight, mean, rstd, add, dx;
  float offset;
  cuda::ColumnSums sums;  // without dx's, if that is not computed
  bool sum_dx, accumulate;
  Fp8Output fp8_dx;
};
template <bool kMean, class Place>
void backward(const char* op, const Backward& a, Place place, int multiprocessors, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  with_team<kBackwardPacksOfWarp>(op, a.x.dtype, C, [&]<class T, int kPacks, int kMostThreads>(dim3 block) {
    const auto run = [&]<bool kSumDx, class Fp8>(Fp8 fp8_values) {
      const auto kernel = norm_backward_kernel<T, kPacks, kMostThreads, kMean, kSumDx, Fp8, Place>;
      constexpr size_t shared = BackwardRing<T, kPacks, kMostThreads>::kBytes;
      const int64_t blocks = blocks_for(kernel, block, shared, N, multiprocessors, cuda::kMaxSlabs);
      auto* partials = reinterpret_cast<float*>(
          on.scratch(op, cuda::column_partials_bytes(blocks, Kept<kMean, kSumDx>::kCount * C)));
      kernel<<<blocks, block, shared, on.stream>>>(
          a.dy.as<T>(), a.x.as<T>(), a.weight.as<T>(), a.mean.as<float>(), a.rstd.as<float>(), a.add.as<T>(),
          a.dx.as<T>(), partials, a.offset, N, static_cast<int>(C), fp8_values, place);
      TESSERA_CUDA_LAUNCHED();
      cuda::add_slabs(partials, blocks, a.sums, a.accumulate, on.stream);
    };
    if constexpr (std::is_same_v<Place, HeadRows>) {
      run.template operator()<false>(NoFp8{});
    } else {
      with_fp8<T, __NV_E5M2>(a.fp8_dx, [&](auto fp8_values) {
        a.sum_dx ? run.template operator()<true>(fp8_values) : run.template operator()<false>(fp8_values);
      });
    }
  });
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

}  // namespace

void CudaBackend::run_op(const LayerNormForward& a, const Launch& on) {
  check_packs(a.kName, {{"x", a.x}, {"weight", a.weight}, {"bias", a.bias}, {"y", a.y}});
  check_aligned(a.kName, {{"fp8_y", a.fp8_y.y.data}});
  forward<true>(a.kName, {a.x, a.weight, a.bias, {}, a.y, a.mean, a.rstd, a.epsilon, 0, a.fp8_y},
                PackedRows{}, multiprocessors_, on);
}

void CudaBackend::run_op(const RmsNormForward& a, const Launch& on) {
  check_packs(a.kName, {{"x", a.x}, {"weight", a.weight}, {"y", a.y}, {"add", a.add}});
  check_aligned(a.kName, {{"fp8_y", a.fp8_y.y.data}});
  forward<false>(a.kName, {a.x, a.weight, {}, a.add, a.y, {}, a.rstd, a.epsilon, a.offset, a.fp8_y},
                 PackedRows{}, multiprocessors_, on);
}

void CudaBackend::run_op(const HeadsNormForward& a, const Launch& on) {
  const RowsOfHeads x(a.x), y(a.y);
  check_packs(a.kName, {{"x", x.rows}, {"x", x.token}, {"weight", a.weight}, {"y", y.rows}, {"y", y.token}});
  forward<false>(a.kName, {x.rows, a.weight, {}, {}, y.rows, {}, a.rstd, a.epsilon, a.offset, {}},
                 HeadRows{.of_x = x.stride, .of_y = y.stride, .of_dy = 0}, multiprocessors_, on);
}

void CudaBackend::run_op(const LayerNormBackward& a, const Launch& on) {
  check_packs(a.kName, {{"dy", a.dy}, {"x", a.x}, {"weight", a.weight}, {"dx", a.dx}, {"add", a.add}});
  check_aligned(a.kName, {{"fp8_dx", a.fp8_dx.y.data}});
  backward<true>(a.kName,
                 {.dy = a.dy,
                  .x = a.x,
                  .weight = a.weight,
                  .mean = a.mean,
                  .rstd = a.rstd,
                  .add = a.add,
                  .dx = a.dx,
                  .offset = 0,
                  .sums = {a.dweight, a.dbias, a.dx_sum},
                  .sum_dx = static_cast<bool>(a.dx_sum),
                  .accumulate = a.accumulate,
                  .fp8_dx = a.fp8_dx},
                 PackedRows{}, multiprocessors_, on);
}

void CudaBackend::run_op(const RmsNormBackward& a, const Launch& on) {
  check_packs(a.kName, {{"dy", a.dy}, {"x", a.x}, {"weight", a.weight}, {"dx", a.dx}, {"add", a.add}});
  check_aligned(a.kName, {{"fp8_dx", a.fp8_dx.y.data}});
  backward<false>(a.kName,
                  {.dy = a.dy,
                   .x = a.x,
                   .weight = a.weight,
                   .mean = {},
                   .rstd = a.rstd,
                   .add = a.add,
                   .dx = a.dx,
                   .offset = a.offset,
                   .sums = {a.dweight, a.dx_sum},
                   .sum_dx = static_cast<bool>(a.dx_sum),
                   .accumulate = a.accumulate,
                   .fp8_dx = a.fp8_dx},
                  PackedRows{}, multiprocessors_, on);
}

void CudaBackend::run_op(const HeadsNormBackward& a, const Launch& on) {
  const RowsOfHeads dy(a.dy), x(a.x), dx(a.dx);
  check_packs(a.kName, {{"dy", dy.rows},
                        {"dy", dy.token},
                        {"x", x.rows},
                        {"x", x.token},
                        {"weight", a.weight},
                        {"dx", dx.rows},
                        {"dx", dx.token}});
  backward<false>(a.kName,
                  {.dy = dy.rows,
                   .x = x.rows,
                   .weight = a.weight,
                   .mean = {},
                   .rstd = a.rstd,
                   .add = {},
                   .dx = dx.rows,
                   .offset = a.offset,
                   .sums = {a.dweight},
                   .sum_dx = false,
                   .accumulate = a.accumulate,
                   .fp8_dx = {}},
                  HeadRows{.of_x = x.stride, .of_y = dx.stride, .of_dy = dy.stride}, multiprocessors_, on);
}

}  // namespace tessera

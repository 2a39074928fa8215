// The backward of LayerNorm and RMSNorm: see row_norm.cuh.
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

using namespace cuda::row_norm;

constexpr int kBackwardPacksOfWarp = 3;  // the most that a team of one warp holds
// Rows of a team that are on their way: what hides the latency of memory at 4 TB/s and yet fits into 99 KB
template <int kMostThreads>
constexpr int kBackwardRows = kMostThreads > kWideThreads ? 2 : 3;
// Blocks of a multiprocessor that a backward's registers allow. With the most packs the compiler would take
// 205, and only 4 blocks would fit.
template <int kPacks>
constexpr int kBackwardBlocks = kPacks == kBackwardPacksOfWarp ? 6 : 1;

enum { kDy, kX, kAdd, kBackwardTensors };
template <class T, int kPacks, int kMostThreads>
using BackwardRing = RowRing<Packs<T, kPacks, kMostThreads>, kBackwardTensors, kBackwardRows<kMostThreads>>;

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

}  // namespace

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

// LayerNorm, in the way of row_norm.cuh.
#include <cuda_pipeline.h>

#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

template <class T, class Block>
__global__ __launch_bounds__(Block::kThreads, Wide::kThreads / Block::kThreads) void layernorm_forward_kernel(
    const T* x, const T* weight, const T* bias, T* y, float* means, float* rstds, float epsilon, int64_t N,
    int C) {
  constexpr int kWidth = kPackWidth<T>, kRows = Block::kRows;
  // One for each sum of a group: the other's barrier lies between its reads and their overwriting.
  __shared__ float scratch[2][kMaxWarps][kRows];
  extern __shared__ uint4 staged[];  // [turn][row][thread]
  const int c = threadIdx.x * kWidth;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRows;
  const auto stage = [&](int turn, int r) -> uint4& {
    return staged[(turn * kRows + r) * blockDim.x + threadIdx.x];
  };
  const auto fetch = [&](int64_t first, int turn) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (c < C && first + r < N)
        __pipeline_memcpy_async(&stage(turn, r), x + (first + r) * C + c, sizeof(uint4));
    __pipeline_commit();
  };

  float w[kWidth] = {}, b[kWidth] = {}, value[kWidth];
  if (c < C) load_floats(weight + c, w), load_floats(bias + c, b);
  int turn = 0;
  fetch(static_cast<int64_t>(blockIdx.x) * kRows, turn);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < N; first += stride, turn ^= 1) {
    fetch(first + stride, turn ^ 1);
    __pipeline_wait_prior(1);  // all but the group that was just asked for

    const auto mine = [&](int r) { return c < C && first + r < N; };
    float mean[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!mine(r)) continue;
      unpack<T>(stage(turn, r), value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) mean[r] += value[i];
    }
    block_sum(mean, scratch[0]);

    // The variance from the differences, not from the sum of squares, which cancels where the mean is large.
    float rstd[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] /= static_cast<float>(C);
      if (!mine(r)) continue;
      unpack<T>(stage(turn, r), value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) rstd[r] += (value[i] - mean[r]) * (value[i] - mean[r]);
    }
    block_sum(rstd, scratch[1]);

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rstd[r] = rsqrtf(rstd[r] / static_cast<float>(C) + epsilon);
      if (!mine(r)) continue;
      unpack<T>(stage(turn, r), value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) value[i] = (value[i] - mean[r]) * rstd[r] * w[i] + b[i];
      store_floats(y + (first + r) * C + c, value);
      if (threadIdx.x == 0) means[first + r] = mean[r], rstds[first + r] = rstd[r];
    }
  }
}

// With h = (x - mean) rstd and g = dy weight:
//   dx = rstd (g - mean(g) - h mean(g h)) + add,  dweight += dy h,  dbias += dy
//
// A block leaves its part of dweight and dbias in partials[block][2][C].
enum { kDy, kX, kAdd, kStaged };

template <class T, class Block>
__global__ __launch_bounds__(Block::kThreads,
                             1) void layernorm_backward_kernel(const T* dy, const T* x, const T* weight,
                                                               const float* means, const float* rstds,
                                                               const T* add, T* dx, float* partials,
                                                               int64_t N, int C) {
  constexpr int kWidth = kPackWidth<T>, kRows = Block::kRows;
  // Two, in turn: the next group's barrier then lies between this group's reads and their overwriting.
  __shared__ float scratch[2][kMaxWarps][2 * kRows];
  extern __shared__ uint4 staged[];  // [turn][dy, x, add][row][thread]
  const int c = threadIdx.x * kWidth;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRows;
  const auto stage = [&](int turn, int which, int r) -> uint4& {
    return staged[((turn * kStaged + which) * kRows + r) * blockDim.x + threadIdx.x];
  };
  float next_mean[kRows], next_rstd[kRows];
  const auto fetch = [&](int64_t first, int turn) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool exists = first + r < N;
      next_mean[r] = exists ? means[first + r] : 0.0f;
      next_rstd[r] = exists ? rstds[first + r] : 0.0f;
      if (c >= C || !exists) continue;
      const int64_t at = (first + r) * C + c;
      __pipeline_memcpy_async(&stage(turn, kDy, r), dy + at, sizeof(uint4));
      __pipeline_memcpy_async(&stage(turn, kX, r), x + at, sizeof(uint4));
      if (add) __pipeline_memcpy_async(&stage(turn, kAdd, r), add + at, sizeof(uint4));
    }
    __pipeline_commit();
  };

  float w[kWidth] = {}, dw[kWidth] = {}, db[kWidth] = {};
  if (c < C) load_floats(weight + c, w);
  int turn = 0;
  fetch(static_cast<int64_t>(blockIdx.x) * kRows, turn);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < N; first += stride, turn ^= 1) {
    float mean[kRows], rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) mean[r] = next_mean[r], rstd[r] = next_rstd[r];
    fetch(first + stride, turn ^ 1);
    __pipeline_wait_prior(1);  // all but the group that was just asked for

    const auto mine = [&](int r) { return c < C && first + r < N; };
    float sums[2 * kRows] = {};  // of g, then of g h
    float d[kWidth], h[kWidth];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!mine(r)) continue;
      unpack<T>(stage(turn, kDy, r), d);
      unpack<T>(stage(turn, kX, r), h);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        h[i] = (h[i] - mean[r]) * rstd[r];
        sums[r] += d[i] * w[i];
        sums[kRows + r] += d[i] * w[i] * h[i];
        dw[i] += d[i] * h[i];
        db[i] += d[i];
      }
    }
    block_sum(sums, scratch[turn]);

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!mine(r)) continue;
      const float mean_g = sums[r] / static_cast<float>(C), mean_gh = sums[kRows + r] / static_cast<float>(C);
      unpack<T>(stage(turn, kDy, r), d);
      unpack<T>(stage(turn, kX, r), h);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        h[i] = (h[i] - mean[r]) * rstd[r];
        d[i] = rstd[r] * (d[i] * w[i] - mean_g - h[i] * mean_gh);
      }
      if (add) {
        unpack<T>(stage(turn, kAdd, r), h);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) d[i] += h[i];
      }
      store_floats(dx + (first + r) * C + c, d);
    }
  }
  if (c >= C) return;
  float* partial = partials + static_cast<int64_t>(blockIdx.x) * 2 * C + c;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) partial[i] = dw[i], partial[C + i] = db[i];
}

}  // namespace

void CudaBackend::run_op(const LayerNormForward& a, const Launch& on) {
  const char* op = a.kName;
  check_packs(op, {{"x", a.x}, {"weight", a.weight}, {"bias", a.bias}, {"y", a.y}});
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  with_block(op, a.x.dtype, C, [&]<class T, class Block>(int threads) {
    const auto kernel = layernorm_forward_kernel<T, Block>;
    int staged_bytes = 0;
    const int64_t resident = prepare<Block>(kernel, threads, 1, staged_bytes) * multiprocessors_;
    const int64_t blocks = std::min(resident, cuda::divide_up(N, Block::kRows));
    kernel<<<blocks, threads, staged_bytes, on.stream>>>(a.x.as<T>(), a.weight.as<T>(), a.bias.as<T>(),
                                                         a.y.as<T>(), a.mean.as<float>(), a.rstd.as<float>(),
                                                         a.epsilon, N, static_cast<int>(C));
  });
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const LayerNormBackward& a, const Launch& on) {
  const char* op = a.kName;
  check_packs(op, {{"dy", a.dy}, {"x", a.x}, {"weight", a.weight}, {"dx", a.dx}, {"add", a.add}});
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  with_block(op, a.x.dtype, C, [&]<class T, class Block>(int threads) {
    const auto kernel = layernorm_backward_kernel<T, Block>;
    int staged_bytes = 0;
    const int64_t resident = prepare<Block>(kernel, threads, kStaged, staged_bytes) * multiprocessors_;
    const int64_t blocks = std::min({resident, cuda::kMaxSlabs, cuda::divide_up(N, Block::kRows)});
    auto* partials = reinterpret_cast<float*>(on.scratch(op, cuda::column_partials_bytes(blocks, 2 * C)));
    kernel<<<blocks, threads, staged_bytes, on.stream>>>(
        a.dy.as<T>(), a.x.as<T>(), a.weight.as<T>(), a.mean.as<float>(), a.rstd.as<float>(), a.add.as<T>(),
        a.dx.as<T>(), partials, N, static_cast<int>(C));
    TESSERA_CUDA_LAUNCHED();
    cuda::add_slabs(partials, blocks, a.dweight, a.dbias, on.stream);
  });
}

}  // namespace tessera

// RMSNorm, in the way of row_norm.cuh.
#include <cuda_pipeline.h>

#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/row_norm.cuh"

namespace tessera {
namespace {

template <class T, class Block>
__global__ __launch_bounds__(Block::kThreads, Wide::kThreads / Block::kThreads) void rmsnorm_forward_kernel(
    const T* x, const T* weight, T* y, float* rstds, float epsilon, int64_t N, int C) {
  constexpr int kWidth = kPackWidth<T>, kRows = Block::kRows;
  // Two, in turn: the next group's barrier then lies between this group's reads and their overwriting.
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

  float w[kWidth] = {}, value[kWidth];
  if (c < C) load_floats(weight + c, w);
  int turn = 0;
  fetch(static_cast<int64_t>(blockIdx.x) * kRows, turn);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < N; first += stride, turn ^= 1) {
    fetch(first + stride, turn ^ 1);
    __pipeline_wait_prior(1);  // all but the group that was just asked for

    const auto mine = [&](int r) { return c < C && first + r < N; };
    float rstd[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!mine(r)) continue;
      unpack<T>(stage(turn, r), value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) rstd[r] += value[i] * value[i];
    }
    block_sum(rstd, scratch[turn]);

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rstd[r] = rsqrtf(rstd[r] / static_cast<float>(C) + epsilon);
      if (!mine(r)) continue;
      unpack<T>(stage(turn, r), value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) value[i] *= rstd[r] * w[i];
      store_floats(y + (first + r) * C + c, value);
      if (threadIdx.x == 0) rstds[first + r] = rstd[r];
    }
  }
}

// With h = x rstd and g = dy weight:
//   dx = rstd (g - h mean(g h)) + add,  dweight += dy h
//
// A block leaves its part of dweight in partials[block][C].
enum { kDy, kX, kAdd, kStaged };

template <class T, class Block>
__global__ __launch_bounds__(Block::kThreads,
                             1) void rmsnorm_backward_kernel(const T* dy, const T* x, const T* weight,
                                                             const float* rstds, const T* add, T* dx,
                                                             float* partials, int64_t N, int C) {
  constexpr int kWidth = kPackWidth<T>, kRows = Block::kRows;
  __shared__ float scratch[2][kMaxWarps][kRows];  // two, in turn, as in the forward
  extern __shared__ uint4 staged[];               // [turn][dy, x, add][row][thread]
  const int c = threadIdx.x * kWidth;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRows;
  const auto stage = [&](int turn, int which, int r) -> uint4& {
    return staged[((turn * kStaged + which) * kRows + r) * blockDim.x + threadIdx.x];
  };
  float next_rstd[kRows];
  const auto fetch = [&](int64_t first, int turn) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool exists = first + r < N;
      next_rstd[r] = exists ? rstds[first + r] : 0.0f;
      if (c >= C || !exists) continue;
      const int64_t at = (first + r) * C + c;
      __pipeline_memcpy_async(&stage(turn, kDy, r), dy + at, sizeof(uint4));
      __pipeline_memcpy_async(&stage(turn, kX, r), x + at, sizeof(uint4));
      if (add) __pipeline_memcpy_async(&stage(turn, kAdd, r), add + at, sizeof(uint4));
    }
    __pipeline_commit();
  };

  float w[kWidth] = {}, dw[kWidth] = {};
  if (c < C) load_floats(weight + c, w);
  int turn = 0;
  fetch(static_cast<int64_t>(blockIdx.x) * kRows, turn);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < N; first += stride, turn ^= 1) {
    float rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) rstd[r] = next_rstd[r];
    fetch(first + stride, turn ^ 1);
    __pipeline_wait_prior(1);  // all but the group that was just asked for

    const auto mine = [&](int r) { return c < C && first + r < N; };
    float sum_gh[kRows] = {};
    float d[kWidth], h[kWidth];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!mine(r)) continue;
      unpack<T>(stage(turn, kDy, r), d);
      unpack<T>(stage(turn, kX, r), h);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float dh = d[i] * (h[i] * rstd[r]);
        sum_gh[r] += dh * w[i];
        dw[i] += dh;
      }
    }
    block_sum(sum_gh, scratch[turn]);

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (!mine(r)) continue;
      const float mean_gh = sum_gh[r] / static_cast<float>(C);
      unpack<T>(stage(turn, kDy, r), d);
      unpack<T>(stage(turn, kX, r), h);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) d[i] = rstd[r] * (d[i] * w[i] - h[i] * rstd[r] * mean_gh);
      if (add) {
        unpack<T>(stage(turn, kAdd, r), h);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) d[i] += h[i];
      }
      store_floats(dx + (first + r) * C + c, d);
    }
  }
  if (c >= C) return;
  float* partial = partials + static_cast<int64_t>(blockIdx.x) * C + c;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) partial[i] = dw[i];
}

}  // namespace

void CudaBackend::run_op(const RmsNormForward& a, const Launch& on) {
  const char* op = a.kName;
  check_packs(op, {{"x", a.x}, {"weight", a.weight}, {"y", a.y}});
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  with_block(op, a.x.dtype, C, [&]<class T, class Block>(int threads) {
    const auto kernel = rmsnorm_forward_kernel<T, Block>;
    int staged_bytes = 0;
    const int64_t resident = prepare<Block>(kernel, threads, 1, staged_bytes) * multiprocessors_;
    const int64_t blocks = std::min(resident, cuda::divide_up(N, Block::kRows));
    kernel<<<blocks, threads, staged_bytes, on.stream>>>(
        a.x.as<T>(), a.weight.as<T>(), a.y.as<T>(), a.rstd.as<float>(), a.epsilon, N, static_cast<int>(C));
  });
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const RmsNormBackward& a, const Launch& on) {
  const char* op = a.kName;
  check_packs(op, {{"dy", a.dy}, {"x", a.x}, {"weight", a.weight}, {"dx", a.dx}, {"add", a.add}});
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  with_block(op, a.x.dtype, C, [&]<class T, class Block>(int threads) {
    const auto kernel = rmsnorm_backward_kernel<T, Block>;
    int staged_bytes = 0;
    const int64_t resident = prepare<Block>(kernel, threads, kStaged, staged_bytes) * multiprocessors_;
    const int64_t blocks = std::min({resident, cuda::kMaxSlabs, cuda::divide_up(N, Block::kRows)});
    auto* partials = reinterpret_cast<float*>(on.scratch(op, cuda::column_partials_bytes(blocks, C)));
    kernel<<<blocks, threads, staged_bytes, on.stream>>>(a.dy.as<T>(), a.x.as<T>(), a.weight.as<T>(),
                                                         a.rstd.as<float>(), a.add.as<T>(), a.dx.as<T>(),
                                                         partials, N, static_cast<int>(C));
    TESSERA_CUDA_LAUNCHED();
    cuda::add_slabs(partials, blocks, a.dweight, {}, on.stream);
  });
}

}  // namespace tessera

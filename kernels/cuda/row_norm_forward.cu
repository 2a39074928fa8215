// The forward of LayerNorm and RMSNorm: see row_norm.cuh.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/row_norm.cuh"

namespace tessera {
namespace {

using namespace cuda::row_norm;

constexpr int kForwardPacksOfWarp = 4;  // the most that a team of one warp holds
// Rows of a team that are on their way: what hides the latency of memory at 4 TB/s and yet fits into 99 KB
constexpr int kForwardRows = 4;
template <class T, int kPacks, int kMostThreads>
using ForwardRing = RowRing<Packs<T, kPacks, kMostThreads>, 1, kForwardRows>;

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

}  // namespace tessera

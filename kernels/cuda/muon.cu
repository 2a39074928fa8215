// Muon: the mean of the gradients, an orthonormal matrix near it, and the update of the weights. The first
// and the last are one pass over their elements, as AdamW's; between them are GEMMs (kernels/gemm/
// orthogonal_gemms.h), of matrices that are first divided by their norms: each block writes a partial sum of
// squares, and the next kernel adds these in order.
#include <algorithm>
#include <vector>

#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gemm/orthogonal_gemms.h"
#include "kernels/workspace.h"

namespace tessera {
namespace {

using cuda::adamw::kElements, cuda::adamw::load_four;

constexpr int kMuonThreads = 256;
constexpr int64_t kMaxNormBlocks = 264;

// Products are rounded by themselves or fused as it stands here, so that an element's bits do not depend on
// its place in the tensor.
struct MuonMean {
  float max_norm, momentum, gain, clip = 1;

  __device__ float operator()(float unclipped, float& mean) const {
    const float added = __fmul_rn(gain, __fmul_rn(unclipped, clip));
    mean = __fmaf_rn(momentum, mean, added);
    return __fmaf_rn(momentum, mean, added);
  }
};
struct MuonStep {
  float rate, decay;
  bool cautious;
  float max_norm = 0, clip = 1;

  __device__ float change(float p, float direction) const {
    const float kept = cautious && direction * p <= 0 ? 0.0f : decay;
    return __fmaf_rn(kept, p, direction);
  }
  __device__ float operator()(float p, float direction) const {
    return __fmaf_rn(-rate, change(p, direction), p);
  }
};

template <class T>
__device__ __forceinline__ void store_four(T* to, const float (&from)[kElements]) {
  if constexpr (sizeof(T) == 2) {
    uint32_t halves[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) halves[i] = __bfloat16_as_ushort(__float2bfloat16(from[i]));
    *reinterpret_cast<uint2*>(to) = {halves[0] | halves[1] << 16, halves[2] | halves[3] << 16};
  } else {
    store_floats(to, from);
  }
}

// G, M, D: the types of gradient, mean and direction
template <class G, class M, class D>
__global__ __launch_bounds__(kMuonThreads) void muon_momentum_kernel(const G* gradient, M* mean, D* direction,
                                                                     int64_t count, const float* norms,
                                                                     int64_t norm_count, const float* verdict,
                                                                     MuonMean update, Philox random,
                                                                     int64_t first_element) {
  if (!cuda::adamw::begin(update, norms, norm_count, verdict)) return;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x) * kElements;
  if (first >= count) return;
  Philox::Words words{};
  if constexpr (sizeof(M) == 2)
    words = random.bits(static_cast<uint64_t>((first_element + first) / kElements));
  if (first + kElements <= count) {
    float g4[kElements], m4[kElements], d4[kElements];
    load_four(gradient + first, g4), load_four(mean + first, m4);
#pragma unroll
    for (int i = 0; i < kElements; ++i) d4[i] = update(g4[i], m4[i]);
    cuda::adamw::store_moments(mean + first, m4, words, 0);
    store_four(direction + first, d4);
    return;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int64_t one = first + i;
    if (one >= count) return;
    float m = static_cast<float>(mean[one]);
    direction[one] = static_cast<D>(update(static_cast<float>(gradient[one]), m));
    mean[one] = cuda::adamw::moment_of<M>(m, words[i]);
  }
}

template <class T>
__global__ __launch_bounds__(kMuonThreads) void muon_update_kernel(T* param, uint16_t* low,
                                                                   const T* direction, int64_t count,
                                                                   const float* norms, int64_t norm_count,
                                                                   const float* verdict, MuonStep update) {
  if (!cuda::adamw::begin(update, norms, norm_count, verdict)) return;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x) * kElements;
  if (first >= count) return;
  const auto p = cuda::adamw::parameters<T>(param, low);
  if (first + kElements <= count) {
    float p4[kElements], d4[kElements];
    p.load(first, p4), load_four(direction + first, d4);
#pragma unroll
    for (int i = 0; i < kElements; ++i) p4[i] = update(p4[i], d4[i]);
    p.store(first, p4);
    return;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    if (const int64_t one = first + i; one < count)
      p.store_one(one, update(p.load_one(one), static_cast<float>(direction[one])));
}

// The matrices of an Orthogonalise: a row of blocks each, of which as many work as a matrix has alone
__host__ __device__ constexpr int64_t norm_blocks(int64_t count) {
  const int64_t blocks = (count + kMuonThreads * 8 - 1) / (kMuonThreads * 8);
  return blocks < kMaxNormBlocks ? blocks : kMaxNormBlocks;
}
template <class T>
struct Matrices {
  T *x[Orthogonalise::kMost], *y[Orthogonalise::kMost];
  int64_t counts[Orthogonalise::kMost];
};

template <class T>
__global__ __launch_bounds__(kMuonThreads) void matrix_squares_kernel(
    const __grid_constant__ Matrices<T> matrices, float* partials) {
  const T* x = matrices.x[blockIdx.y];
  const int64_t count = matrices.counts[blockIdx.y], blocks = norm_blocks(count);
  if (blockIdx.x >= blocks) return;
  float sum[1] = {};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < count;
       i += blocks * kMuonThreads) {
    const float value = static_cast<float>(x[i]);
    sum[0] += value * value;
  }
  __shared__ float scratch[kMaxWarps][1];
  block_sum(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.y * kMaxNormBlocks + blockIdx.x] = sum[0];
}

template <class T>
__global__ __launch_bounds__(kMuonThreads) void divide_by_norm_kernel(
    const __grid_constant__ Matrices<T> matrices, const float* partials, float margin) {
  const T* x = matrices.x[blockIdx.y];
  T* y = matrices.y[blockIdx.y];
  const int64_t count = matrices.counts[blockIdx.y], blocks = norm_blocks(count);
  if (blockIdx.x >= blocks) return;
  float sum[1] = {};
  for (int64_t i = threadIdx.x; i < blocks; i += kMuonThreads)
    sum[0] += partials[blockIdx.y * kMaxNormBlocks + i];
  __shared__ float scratch[kMaxWarps][1];
  block_sum(sum, scratch);
  const float factor = sum[0] > 0 ? 1 / (margin * sqrtf(sum[0])) : 0.0f;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < count;
       i += blocks * kMuonThreads)
    y[i] = static_cast<T>(static_cast<float>(x[i]) * factor);
}

// A block is a row: its mean square joins that of earlier steps, and 1 / its length and its sum of squares
// after the division go to `scratch`.
template <class T>
__global__ __launch_bounds__(kMuonThreads) void row_squares_kernel(const T* x, int64_t columns, float* kept,
                                                                   float2* scratch, float beta,
                                                                   const float* norms, int64_t norm_count,
                                                                   const float* verdict) {
  if (!cuda::adamw::updates(cuda::norm_of_parts(norms, norm_count), verdict)) return;
  const T* row = x + static_cast<int64_t>(blockIdx.x) * columns;
  float sum[1] = {};
  for (int64_t i = threadIdx.x; i < columns; i += kMuonThreads) {
    const float value = static_cast<float>(row[i]);
    sum[0] += value * value;
  }
  __shared__ float shared[kMaxWarps][1];
  block_sum(sum, shared);
  if (threadIdx.x > 0) return;
  const float mean = beta * kept[blockIdx.x] + (1 - beta) * sum[0] / static_cast<float>(columns);
  const float factor = 1 / (sqrtf(mean) + static_cast<float>(NormaliseRows::kEpsilon));
  kept[blockIdx.x] = mean;
  scratch[blockIdx.x] = {factor, sum[0] * factor * factor};
}

template <class T>
__global__ __launch_bounds__(kMuonThreads) void divide_rows_kernel(T* x, int64_t rows, int64_t columns,
                                                                   const float2* scratch, float rms,
                                                                   const float* norms, int64_t norm_count,
                                                                   const float* verdict) {
  if (!cuda::adamw::updates(cuda::norm_of_parts(norms, norm_count), verdict)) return;
  float sum[1] = {};
  for (int64_t i = threadIdx.x; i < rows; i += kMuonThreads) sum[0] += scratch[i].y;
  __shared__ float shared[kMaxWarps][1];
  block_sum(sum, shared);
  const float scale =
      sum[0] > 0 ? rms * sqrtf(static_cast<float>(rows) * static_cast<float>(columns) / sum[0]) : 0.0f;
  for (int64_t at = blockIdx.x; at < rows; at += gridDim.x) {
    const float factor = scale * scratch[at].x;
    for (int64_t i = at * columns + threadIdx.x; i < (at + 1) * columns; i += kMuonThreads)
      x[i] = static_cast<T>(static_cast<float>(x[i]) * factor);
  }
}

// Blocks write partial sums of three squares, and the next kernel adds these in order.
template <class T, class G>
__global__ __launch_bounds__(kMuonThreads) void muon_norms_kernel(T* param, uint16_t* low, const T* direction,
                                                                  const G* gradient, int64_t count,
                                                                  const float* norms, int64_t norm_count,
                                                                  const float* verdict, MuonStep update,
                                                                  float* partials) {
  const bool updates = cuda::adamw::begin(update, norms, norm_count, verdict);
  const auto p = cuda::adamw::parameters<T>(param, low);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kMuonThreads;
  float sums[3] = {};
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; updates && i < count;
       i += stride) {
    const float weight = p.load_one(i), scaled = static_cast<float>(gradient[i]) * update.clip,
                change = update.rate * update.change(weight, static_cast<float>(direction[i]));
    sums[0] += weight * weight, sums[1] += scaled * scaled, sums[2] += change * change;
  }
  __shared__ float scratch[kMaxWarps][3];
  block_sum(sums, scratch);
  if (threadIdx.x < 3) partials[blockIdx.x * 3 + threadIdx.x] = sums[threadIdx.x];
}
__global__ __launch_bounds__(kMuonThreads) void add_three_kernel(const float* partials, int blocks,
                                                                 float* sums) {
  float all[3] = {};
  for (int block = threadIdx.x; block < blocks; block += kMuonThreads)
    for (int i = 0; i < 3; ++i) all[i] += partials[block * 3 + i];
  __shared__ float scratch[kMaxWarps][3];
  block_sum(all, scratch);
  if (threadIdx.x < 3) sums[threadIdx.x] = all[threadIdx.x];
}

MuonStep step_of(const MuonUpdate& a) {
  return {.rate = static_cast<float>(a.learning_rate),
          .decay = static_cast<float>(a.weight_decay),
          .cautious = a.cautious};
}

unsigned muon_blocks(int64_t count) {
  return static_cast<unsigned>(cuda::divide_up(count, int64_t{kMuonThreads} * kElements));
}

}  // namespace

void CudaBackend::run_op(const MuonMomentum& a, const Launch& on) {
  check_aligned(a.kName, {{"gradient", a.gradient}, {"mean", a.mean}, {"direction", a.direction}});
  const int64_t count = a.direction.numel();
  if (count == 0) return;
  const MuonMean update{.max_norm = static_cast<float>(a.max_norm),
                        .momentum = static_cast<float>(a.momentum),
                        .gain = static_cast<float>(1 - a.momentum)};
  const Philox random(a.random_key, static_cast<uint64_t>(a.step));
  with_real_type(a.gradient.dtype, [&]<class G>() {
    with_real_type(a.mean.dtype, [&]<class M>() {
      with_real_type(a.direction.dtype, [&]<class D>() {
        muon_momentum_kernel<<<muon_blocks(count), kMuonThreads, 0, on.stream>>>(
            a.gradient.as<G>(), a.mean.as<M>(), a.direction.as<D>(), count, a.grad_norm.as<float>(),
            a.grad_norm.numel(), a.verdict.as<float>(), update, random, a.first_element);
      });
    });
  });
  TESSERA_CUDA_LAUNCHED();
}

// Matrices go through each GEMM together where we have a kernel for that, the others one after the other.
static_assert(Orthogonalise::kMost <= gemm::kMostOfBatch);
void CudaBackend::run_op(const Orthogonalise& a, const Launch& on) {
  const size_t matrices = a.matrices.size();
  const std::vector<OrthogonalGemms> all = gemms_of(a);
  int64_t largest = 0;
  for (const Tensor& matrix : a.matrices) largest = std::max(largest, matrix.numel());
  const dim3 blocks(static_cast<unsigned>(norm_blocks(largest)), static_cast<unsigned>(matrices));
  auto* partials = reinterpret_cast<float*>(on.scratch(
      a.kName, static_cast<int64_t>(matrices) * kMaxNormBlocks * static_cast<int64_t>(sizeof(float))));
  with_real_type(a.room.dtype, [&]<class T>() {
    Matrices<T> of{};
    for (size_t i = 0; i < matrices; ++i) {
      of.x[i] = a.matrices[i].template as<T>(), of.y[i] = all[i].first.template as<T>();
      of.counts[i] = a.matrices[i].numel();
    }
    matrix_squares_kernel<<<blocks, kMuonThreads, 0, on.stream>>>(of, partials);
    TESSERA_CUDA_LAUNCHED();
    divide_by_norm_kernel<<<blocks, kMuonThreads, 0, on.stream>>>(of, partials, static_cast<float>(a.margin));
    TESSERA_CUDA_LAUNCHED();
  });
  for (size_t step = 0; step < all.front().gemms.size(); ++step) {
    std::vector<Gemm> together;
    for (const OrthogonalGemms& of : all)
      if (const Gemm& one = of.gemms[step]; gemms_.serves_batch(one))
        together.push_back(one);
      else
        gemm(one, on);
    if (!together.empty()) gemms_.run_batch(together, on.stream);
  }
}

void CudaBackend::run_op(const MuonUpdate& a, const Launch& on) {
  check_aligned(a.kName, {{"param", a.param}, {"low", a.low}, {"direction", a.direction}});
  const int64_t count = a.param.numel();
  if (count == 0) return;
  const MuonStep update = step_of(a);
  with_real_type(a.param.dtype, [&]<class T>() {
    muon_update_kernel<<<muon_blocks(count), kMuonThreads, 0, on.stream>>>(
        a.param.as<T>(), a.low.as<uint16_t>(), a.direction.as<T>(), count, a.grad_norm.as<float>(),
        a.grad_norm.numel(), a.verdict.as<float>(), update);
  });
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const NormaliseRows& a, const Launch& on) {
  const int64_t rows = a.matrix.shape[0], columns = a.matrix.shape[1];
  auto* scratch = reinterpret_cast<float2*>(on.scratch(a.kName, rows * static_cast<int64_t>(sizeof(float2))));
  with_real_type(a.matrix.dtype, [&]<class T>() {
    row_squares_kernel<<<static_cast<unsigned>(rows), kMuonThreads, 0, on.stream>>>(
        a.matrix.as<T>(), columns, a.squares.as<float>(), scratch, static_cast<float>(a.beta),
        a.grad_norm.as<float>(), a.grad_norm.numel(), a.verdict.as<float>());
    TESSERA_CUDA_LAUNCHED();
    divide_rows_kernel<<<static_cast<unsigned>(std::min(rows, kMaxNormBlocks)), kMuonThreads, 0, on.stream>>>(
        a.matrix.as<T>(), rows, columns, scratch, static_cast<float>(a.rms), a.grad_norm.as<float>(),
        a.grad_norm.numel(), a.verdict.as<float>());
    TESSERA_CUDA_LAUNCHED();
  });
}

void CudaBackend::run_op(const MuonNorms& a, const Launch& on) {
  MuonStep update = step_of(a.step);
  update.max_norm = static_cast<float>(a.max_norm);
  const Tensor param = a.step.param.rows(a.first, a.count),
               direction = a.step.direction.rows(a.first, a.count),
               gradient = a.gradient.rows(a.first, a.count),
               low = a.step.low ? a.step.low.rows(a.first, a.count) : Tensor{};
  const auto blocks = static_cast<unsigned>(
      std::clamp<int64_t>(cuda::divide_up(a.count, int64_t{kMuonThreads} * 8), 1, kMaxNormBlocks));
  auto* partials =
      reinterpret_cast<float*>(on.scratch(a.kName, 3 * kMaxNormBlocks * static_cast<int64_t>(sizeof(float))));
  with_real_type(param.dtype, [&]<class T>() {
    with_real_type(gradient.dtype, [&]<class G>() {
      muon_norms_kernel<<<blocks, kMuonThreads, 0, on.stream>>>(
          param.as<T>(), low.as<uint16_t>(), direction.as<T>(), gradient.as<G>(), a.count,
          a.step.grad_norm.as<float>(), a.step.grad_norm.numel(), a.step.verdict.as<float>(), update,
          partials);
    });
  });
  TESSERA_CUDA_LAUNCHED();
  add_three_kernel<<<1, kMuonThreads, 0, on.stream>>>(partials, static_cast<int>(blocks), a.sums.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera

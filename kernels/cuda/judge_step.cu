// Whether a step updates the weights: the sum of its losses, by one block in a fixed order, and a look at
// that and the norm, by one thread. AdamW reads the verdict, so that nothing waits for the host.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/norm_of_parts.cuh"

namespace tessera {
namespace {

constexpr int kThreads = 1024;

__global__ __launch_bounds__(kThreads) void sum_losses_kernel(const float* losses, int64_t count,
                                                              float* sum) {
  __shared__ double sums[kThreads];
  double mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) mine += losses[i];
  sums[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *sum = static_cast<float>(sums[0]);
}

__global__ void judge_kernel(const float* losses, int64_t ranks, const float* norms, int64_t parts,
                             const float* limits, float* verdict) {
  double sum = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) sum += losses[rank];
  const float loss = static_cast<float>(sum), norm = cuda::norm_of_parts(norms, parts);
  *verdict = static_cast<float>(judge_step(loss, norm, limits[0], limits[1]));
}

}  // namespace

void CudaBackend::run_op(const SumLosses& a, const Launch& on) {
  sum_losses_kernel<<<1, kThreads, 0, on.stream>>>(a.losses.as<float>(), a.losses.numel(), a.sum.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const JudgeStep& a, const Launch& on) {
  judge_kernel<<<1, 1, 0, on.stream>>>(a.losses.as<float>(), a.losses.numel(), a.grad_norm.as<float>(),
                                       a.grad_norm.numel(), a.limits.as<float>(), a.verdict.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera

// The logits and the loss in one, by our own GEMM (kernels/gemm/sm90), whose epilogue writes exponentials
// and sums of them. Passes over [N, C] come before and after it; GEMMs alone read what is [N, V].
#include "kernels/attention/common/dot.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gemm/sm90/problem.h"
#include "kernels/workspace.h"

namespace tessera {
namespace {

static_assert(HeadLoss::kSumColumns == gemm::kColumnsOfPartial);
constexpr int kThreads = 256, kRowsOfBlock = kThreads / kWarp;

// references[n] = x[n] weight[targets[n]], 0 without a target. A warp takes a row.
__global__ void __launch_bounds__(kThreads)
    references_kernel(const bf16* x, const bf16* weight, const int32_t* targets, float* references, int64_t N,
                      int64_t C) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / kWarp;
  if (n >= N) return;
  const int target = targets[n], lane = threadIdx.x % kWarp;
  float sum = 0;
  if (target != kNoTarget)
    for (int64_t c = lane * kPackWidth<bf16>; c < C; c += kWarp * kPackWidth<bf16>)
      sum += attention::dot8(load_pack(x + n * C + c), load_pack(weight + target * C + c));
  sum = warp_sum(sum);
  if (lane == 0) references[n] = sum;
}

// The loss and the factors of each row, from `parts` partial sums of its exponentials
__global__ void __launch_bounds__(kThreads)
    losses_kernel(const float* sums, int parts, const int32_t* targets, const float* gradient_scale,
                  const float* weights, const float* references, float z_loss, float* losses, float* factors,
                  int64_t N) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= N) return;
  float sum = 0;
#pragma unroll 8
  for (int part = 0; part < parts; ++part) sum += sums[part * N + n];
  const bool has_target = targets[n] != kNoTarget;
  const float weight = weights ? weights[n] : 1, scale = gradient_scale ? *gradient_scale : 1;
  const float factor = has_target ? weight * scale / (1 + sum) : 0, loss = log1pf(sum);
  const float lse = references[n] + loss, of_z = 2 * z_loss * lse;
  losses[n] = has_target ? weight * (z_loss > 0 ? fmaf(z_loss * lse, lse, loss) : loss) : 0;
  factors[n] = z_loss > 0 ? factor * (1 + of_z) : factor;
  factors[N + n] = has_target ? factor * (of_z - sum) : 0;
}

// scaled[n] = factors[n] x[n]
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const bf16* x, const float* factors, bf16* scaled, int64_t N, int64_t C) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPackWidth<bf16>;
  if (i >= N * C) return;
  float value[kPackWidth<bf16>];
  load_floats(x + i, value);
  const float factor = factors[i / C];
#pragma unroll
  for (float& v : value) v *= factor;
  store_floats(scaled + i, value);
}

// dx[n] = factors[n] product[n] + factors[N + n] weight[targets[n]]
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(const bf16* product, const bf16* weight, const int32_t* targets,
                          const float* factors, bf16* dx, int64_t N, int64_t C) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPackWidth<bf16>;
  if (i >= N * C) return;
  const int64_t n = i / C, c = i - n * C;
  float value[kPackWidth<bf16>], row[kPackWidth<bf16>];
  load_floats(product + i, value);
  load_floats(weight + max(targets[n], 0) * C + c, row);
  const float of_product = factors[n], of_target = factors[N + n];
#pragma unroll
  for (int j = 0; j < kPackWidth<bf16>; ++j) value[j] = fmaf(of_product, value[j], of_target * row[j]);
  store_floats(dx + i, value);
}

void check_bf16(const char* op, const Tensor& x) {
  check(x.dtype == DType::kBF16, "{}: computes in bf16 on a GPU, found {}", op, x.to_string());
}

}  // namespace

void CudaBackend::run_op(const HeadLoss& a, const Launch& on) {
  check_bf16(a.kName, a.x);
  check_packs(a.kName, {{"x", a.x}, {"weight", a.weight}, {"e", a.e}, {"scaled_x", a.scaled_x}});
  const int64_t N = a.x.shape[0], C = a.x.shape[1], padded = a.weight.shape[0];
  const bf16 *x = a.x.as<bf16>(), *weight = a.weight.as<bf16>();
  const int32_t* targets = a.targets.as<int32_t>();
  auto* references = reinterpret_cast<float*>(on.scratch(a.kName, N * 4));
  references_kernel<<<cuda::divide_up(N, kRowsOfBlock), kThreads, 0, on.stream>>>(x, weight, targets,
                                                                                  references, N, C);
  TESSERA_CUDA_LAUNCHED();
  gemm::run({.kind = gemm::Kind::kExp,
             .m = N,
             .n = padded,
             .k = C,
             .a = {a.x.data, C},
             .b = {a.weight.data, C},
             .d = {a.e.data, padded},
             .transposed = true,
             .partials = a.sums.as<float>(),
             .exponentials = {.references = references, .left_out = targets, .end = a.vocab_size}},
            multiprocessors_, on.stream);
  losses_kernel<<<cuda::divide_up(N, kThreads), kThreads, 0, on.stream>>>(
      a.sums.as<float>(), static_cast<int>(a.sums.shape[0]), targets, a.gradient_scale.as<float>(),
      a.weights.as<float>(), references, a.z_loss, a.losses.as<float>(), a.factors.as<float>(), N);
  TESSERA_CUDA_LAUNCHED();
  scale_kernel<<<cuda::divide_up(N * C, kThreads * kPackWidth<bf16>), kThreads, 0, on.stream>>>(
      x, a.factors.as<float>(), a.scaled_x.as<bf16>(), N, C);
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const HeadGradient& a, const Launch& on) {
  check_bf16(a.kName, a.x);
  check_packs(a.kName, {{"x", a.x}, {"product", a.product}, {"weight", a.weight}, {"dweight", a.dweight}});
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  const float* factors = a.factors.as<float>();
  cuda::add_rows_to_table(a.kName, a.targets, a.x, factors + N, a.dweight, on);
  input_gradient_kernel<<<cuda::divide_up(N * C, kThreads * kPackWidth<bf16>), kThreads, 0, on.stream>>>(
      a.product.as<bf16>(), a.weight.as<bf16>(), a.targets.as<int32_t>(), factors, a.x.as<bf16>(), N, C);
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera

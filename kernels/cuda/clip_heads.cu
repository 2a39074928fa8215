// The weights of heads whose largest score was too large: a row of blocks for each head of queries and of
// keys, which multiplies the elements that a slice has of it. Most heads have the factor 1 and are not read.
#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 16;  // of a head

// Elements of the slice, counted in the whole
struct Slice {
  int64_t first, end;
  int64_t of_head;  // D C
};

template <class T>
__global__ __launch_bounds__(kThreads) void clip_heads_kernel(void* param, uint16_t* low, Slice slice,
                                                              HeadFactors factors, const float* norms,
                                                              int64_t norm_count, const float* verdict) {
  const int64_t begin = max(slice.first, blockIdx.y * slice.of_head),
                end = min(slice.end, (blockIdx.y + 1) * slice.of_head);
  if (begin >= end || !cuda::adamw::updates(cuda::norm_of_parts(norms, norm_count), verdict)) return;
  const float factor = factors[static_cast<int>(blockIdx.y)];
  if (factor == 1) return;
  const auto p = cuda::adamw::parameters<T>(param, low);
  for (int64_t i = begin + blockIdx.x * kThreads + threadIdx.x; i < end; i += kBlocks * kThreads)
    p.store_one(i - slice.first, __fmul_rn(p.load_one(i - slice.first), factor));
}

}  // namespace

void CudaBackend::run_op(const ClipHeads& a, const Launch& on) {
  if (a.param.numel() == 0) return;
  const Slice slice{
      .first = a.first_element, .end = a.first_element + a.param.numel(), .of_head = a.head_dim * a.columns};
  const dim3 grid(kBlocks, static_cast<unsigned>(a.largest.shape[2] + a.kv_heads));
  with_real_type(a.param.dtype, [&]<class T>() {
    clip_heads_kernel<T><<<grid, kThreads, 0, on.stream>>>(a.param.as<void>(), a.low.as<uint16_t>(), slice,
                                                           HeadFactors::of(a), a.grad_norm.as<float>(),
                                                           a.grad_norm.numel(), a.verdict.as<float>());
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera

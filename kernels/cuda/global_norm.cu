// The norm of all gradients: each block writes one partial sum of squares, then one block adds them in order.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kPacksOfThread = 8;
constexpr int64_t kMaxBlocks = 1024;  // of a tensor
constexpr int kMaxTensors = 64;       // of a launch: a model has hundreds, most of them small
constexpr int kFinalThreads = 1024;

struct TensorBatch {
  int tensors = 0, blocks = 0;
  const void* data[kMaxTensors];
  int64_t count[kMaxTensors];
  int end_block[kMaxTensors];  // of the grid: a tensor's blocks follow those of the one before it
};

template <class T>
__global__ __launch_bounds__(kThreads) void sum_squares_kernel(const __grid_constant__ TensorBatch batch,
                                                               float* partials) {
  constexpr int kWidth = kPackWidth<T>;
  int at = 0;
  while (static_cast<int>(blockIdx.x) >= batch.end_block[at]) ++at;
  const int first_block = at ? batch.end_block[at - 1] : 0;
  const T* x = static_cast<const T*>(batch.data[at]);
  const int64_t count = batch.count[at], packs = count / kWidth;
  const int64_t stride = static_cast<int64_t>(batch.end_block[at] - first_block) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x - first_block) * kThreads + threadIdx.x;

  float sum[1] = {};
#pragma unroll 4
  for (int64_t p = thread; p < packs; p += stride) {
    float value[kWidth];
    load_floats(x + p * kWidth, value);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[0] += value[i] * value[i];
  }
  if (const int64_t rest = packs * kWidth + thread; rest < count) {  // fewer than a pack
    const float value = static_cast<float>(x[rest]);
    sum[0] += value * value;
  }
  __shared__ float scratch[kMaxWarps][1];
  block_sum(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum[0];
}

__global__ __launch_bounds__(kFinalThreads) void norm_kernel(const float* partials, int64_t count,
                                                             float* norm) {
  float sum[1] = {};
  for (int64_t i = threadIdx.x; i < count; i += kFinalThreads) sum[0] += partials[i];
  __shared__ float scratch[kMaxWarps][1];
  block_sum(sum, scratch);
  if (threadIdx.x == 0) norm[0] = sqrtf(sum[0]);
}

}  // namespace

void CudaBackend::run_op(const GlobalNorm& a, const Launch& on) {
  const char* op = a.kName;
  const auto blocks_for = [](const Tensor& tensor) {
    const int64_t block_bytes = int64_t{16} * kThreads * kPacksOfThread;
    return std::min(kMaxBlocks, cuda::divide_up(static_cast<int64_t>(tensor.bytes()), block_bytes));
  };
  int64_t partials_count = 0;
  for (const Tensor& tensor : a.tensors) partials_count += blocks_for(tensor);
  auto* partials =
      reinterpret_cast<float*>(on.scratch(op, partials_count * static_cast<int64_t>(sizeof(float))));

  TensorBatch batch{};
  DType dtype = DType::kF32;  // of the batch
  float* at = partials;
  const auto launch = [&] {
    if (batch.tensors == 0) return;
    with_real_type(dtype, [&]<class T>() {
      sum_squares_kernel<T><<<batch.blocks, kThreads, 0, on.stream>>>(batch, at);
    });
    TESSERA_CUDA_LAUNCHED();
    at += batch.blocks;
    batch.tensors = batch.blocks = 0;
  };
  for (const Tensor& tensor : a.tensors) {
    if (tensor.numel() == 0) continue;
    check_aligned(op, {{"tensors", tensor}});
    if (batch.tensors == kMaxTensors || tensor.dtype != dtype) launch();
    dtype = tensor.dtype;
    batch.blocks += static_cast<int>(blocks_for(tensor));
    batch.data[batch.tensors] = tensor.data;
    batch.count[batch.tensors] = tensor.numel();
    batch.end_block[batch.tensors++] = batch.blocks;
  }
  launch();
  norm_kernel<<<1, kFinalThreads, 0, on.stream>>>(partials, partials_count, a.norm.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera

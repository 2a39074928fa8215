// Dropout: one pass over memory. A thread draws the mask of a unit of 16 channels of a row and applies it in
// packs of 16 bytes, or one by one where rows are not whole packs.
#include "kernels/base/documents.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// Sizes have 32 bits, because a division of 64 would take as long as the loads.
struct Sizes {
  uint32_t units, units_of_row, rows_of_sequence;
  int channels;
};

template <class T, int kStep, bool kAdd>
__global__ __launch_bounds__(kThreads) void apply_dropout_kernel(const T* x, const T* add, T* y,
                                                                 const int32_t* rows, DropoutMask dropout,
                                                                 Sizes sizes) {
  constexpr int kSteps = Dropout::kUnit / kStep;
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= sizes.units) return;
  const uint32_t n = index / sizes.units_of_row, unit = index % sizes.units_of_row;
  const uint32_t batch = n / sizes.rows_of_sequence,
                 row = given_position(rows, nullptr, n, sizes.rows_of_sequence);
  const int first = static_cast<int>(unit) * Dropout::kUnit;
  const int64_t at = static_cast<int64_t>(n) * sizes.channels + first;
  const int steps = min(kSteps, (sizes.channels - first) / kStep);  // the last unit of a row may be shorter

  // y may be x or add: all is read before anything is written.
  float values[kSteps][kStep], sums[kAdd ? kSteps : 1][kStep];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i >= steps) break;
    load_step(x + at + i * kStep, values[i]);
    if constexpr (kAdd) load_step(add + at + i * kStep, sums[i]);
  }
  const Philox::Words words = dropout.draw(batch, 0, row, unit);
  const uint32_t kept = dropout.kept(words, words);
  const float scale = dropout.scale();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i >= steps) break;
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const float value = kept >> (i * kStep + j) & 1 ? values[i][j] * scale : 0.0f;
      values[i][j] = kAdd ? sums[i][j] + value : value;
    }
    store_step(y + at + i * kStep, values[i]);
  }
}

template <class T, int kStep>
void launch(const ApplyDropout& a, const Sizes& sizes, cudaStream_t stream) {
  const auto kernel = a.add ? apply_dropout_kernel<T, kStep, true> : apply_dropout_kernel<T, kStep, false>;
  const auto blocks = static_cast<uint32_t>(cuda::divide_up(int64_t{sizes.units}, kThreads));
  kernel<<<blocks, kThreads, 0, stream>>>(a.x.as<T>(), a.add.as<T>(), a.y.as<T>(), a.rows.as<int32_t>(),
                                          DropoutMask(a.dropout), sizes);
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace

void CudaBackend::run_op(const ApplyDropout& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x}, {"y", a.y}});
  if (a.add) check_aligned(a.kName, {{"add", a.add}});
  const int64_t rows = a.x.shape[0] * a.x.shape[1], C = a.x.shape[2];
  const int64_t units_of_row = cuda::divide_up(C, Dropout::kUnit);
  check(rows <= INT32_MAX / units_of_row, "{}: supports up to {} units of {} channels, found {} rows of {}",
        a.kName, INT32_MAX, Dropout::kUnit, rows, units_of_row);
  const Sizes sizes{.units = static_cast<uint32_t>(rows * units_of_row),
                    .units_of_row = static_cast<uint32_t>(units_of_row),
                    .rows_of_sequence = static_cast<uint32_t>(a.x.shape[1]),
                    .channels = static_cast<int>(C)};
  with_real_type(a.x.dtype, [&]<class T>() {
    C % kPackWidth<T> == 0 ? launch<T, kPackWidth<T>>(a, sizes, on.stream)
                           : launch<T, 1>(a, sizes, on.stream);
  });
}

}  // namespace tessera

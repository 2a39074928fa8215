// MoveHeads: one pass over memory. A thread moves four elements of a head where head dims and addresses
// allow, else one.
#include "kernels/base/bf16.h"
#include "kernels/base/view.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"

namespace tessera {
namespace {

constexpr int kMoveThreads = 256;

// kStep elements as they lie in memory
template <class T, int kStep>
struct alignas(sizeof(T) * kStep) Elements {
  T values[kStep];
};

// Sizes have 32 bits, because a division of 64 would take as long as the loads.
struct MovedSizes {
  uint32_t steps, steps_of_row;
};

template <class From, class To, int kStep>
__global__ __launch_bounds__(kMoveThreads) void move_heads_kernel(View<const From> from, View<To> to,
                                                                  const int32_t* rows, MovedSizes sizes) {
  const uint32_t index = blockIdx.x * kMoveThreads + threadIdx.x;
  if (index >= sizes.steps) return;
  const uint32_t n = index / sizes.steps_of_row, at = (index - n * sizes.steps_of_row) * kStep;
  const int64_t row = rows ? rows[n] : static_cast<int64_t>(n);
  Elements<From, kStep> read{};
  if (row >= 0) read = *reinterpret_cast<const Elements<From, kStep>*>(from.row_begin(row) + at);
  Elements<To, kStep> written;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    if constexpr (std::is_same_v<From, To>)
      written.values[i] = read.values[i];
    else
      written.values[i] = static_cast<To>(static_cast<float>(read.values[i]));
  }
  *reinterpret_cast<Elements<To, kStep>*>(to.row_begin(n) + at) = written;
}

bool in_steps(const Heads& heads, int64_t step) {
  const Tensor& t = heads.tensor;
  const auto bytes = static_cast<uintptr_t>(step) * size_of(t.dtype);
  return t.shape[3] % step == 0 && reinterpret_cast<uintptr_t>(t.data) % bytes == 0;
}

}  // namespace

void CudaBackend::run_op(const MoveHeads& a, const Launch& on) {
  constexpr int kStep = 4;
  const bool steps = in_steps(a.from, kStep) && in_steps(a.to, kStep);
  const Shape& made = a.to.tensor.shape;
  const int64_t N = made[0] * made[1], steps_of_row = a.to.count * made[3] / (steps ? kStep : 1);
  // A launch takes as many rows as the grid has room for.
  const int64_t most = INT32_MAX / steps_of_row;
  const auto run = [&]<class From, class To, int kWidth>() {
    const View<To> to = heads_of<To>(a.to);
    const View<const From> from = heads_of<const From>(a.from);
    for (int64_t first = 0; first < N; first += most) {
      const int64_t count = std::min(most, N - first);
      View<To> part = to;
      View<const From> given = from;
      part.data += first * to.row;
      if (!a.rows) given.data += first * from.row;
      const MovedSizes sizes{.steps = static_cast<uint32_t>(count * steps_of_row),
                             .steps_of_row = static_cast<uint32_t>(steps_of_row)};
      move_heads_kernel<From, To, kWidth>
          <<<cuda::divide_up(count * steps_of_row, kMoveThreads), kMoveThreads, 0, on.stream>>>(
              given, part, a.rows ? a.rows.as<int32_t>() + first : nullptr, sizes);
      TESSERA_CUDA_LAUNCHED();
    }
  };
  with_real_type(a.from.tensor.dtype, [&]<class From>() {
    with_real_type(a.to.tensor.dtype, [&]<class To>() {
      steps ? run.template operator()<From, To, kStep>() : run.template operator()<From, To, 1>();
    });
  });
}

}  // namespace tessera

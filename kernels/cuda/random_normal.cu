// Normally distributed values with the bits that the CPU draws.
//
// Both devices compute the same formula in fp64, but log and cos come from the C library there and from
// CUDA's here. Each is within 2 units in the last place of the exact value, so the results of both differ by
// less than kDoubt. Rounded to fp32 they are equal, unless a border between two fp32 numbers lies as near as
// that: so for one value in 4 million. The kernel lists these, and the host computes them again.
#include <algorithm>
#include <span>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostValues = int64_t{1} << 26;  // of a launch: 16 of them are doubtful
constexpr int kMostDoubtful = 1024;
constexpr double kDoubt = 0x1p-46;  // relative: 64 units in the last place of fp64

// In the workspace
struct Doubtful {
  int count;
  int at[kMostDoubtful];
};

template <class T>
__global__ __launch_bounds__(kThreads) void random_normal_kernel(T* y, int count, Philox random,
                                                                 int64_t first, double deviation,
                                                                 Doubtful* doubtful) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= count) return;
  const double value = deviation * random.normal(static_cast<uint64_t>(first + i));
  y[i] = static_cast<T>(static_cast<float>(value));
  if (static_cast<float>(value * (1 - kDoubt)) == static_cast<float>(value * (1 + kDoubt))) return;
  const int place = atomicAdd(&doubtful->count, 1);
  if (place < kMostDoubtful) doubtful->at[place] = i;
}

void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  TESSERA_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

// Values first .. first + count of the sequence, to y
template <class T>
void draw(const RandomNormal& a, T* y, int64_t first, int count, Doubtful* doubtful, cudaStream_t stream) {
  const Philox random(a.seed, a.stream);
  TESSERA_CUDA(cudaMemsetAsync(doubtful, 0, sizeof(doubtful->count), stream));
  random_normal_kernel<T><<<static_cast<unsigned>(cuda::divide_up(count, kThreads)), kThreads, 0, stream>>>(
      y, count, random, first, a.deviation, doubtful);
  TESSERA_CUDA_LAUNCHED();
  Doubtful found;
  copy(&found, doubtful, sizeof(found), stream);
  TESSERA_CUDA(cudaStreamSynchronize(stream));
  check(found.count <= kMostDoubtful, "{}: {} of {} values are doubtful, expected at most {}", a.kName,
        found.count, count, kMostDoubtful);
  std::vector<T> values;
  for (const int at : std::span(found.at, static_cast<size_t>(found.count)))
    values.push_back(
        static_cast<T>(static_cast<float>(a.deviation * random.normal(static_cast<uint64_t>(first + at)))));
  for (size_t i = 0; i < values.size(); ++i) copy(y + found.at[i], &values[i], sizeof(T), stream);
  TESSERA_CUDA(cudaStreamSynchronize(stream));  // `values` end here
}

}  // namespace

void CudaBackend::run_op(const RandomNormal& a, const Launch& on) {
  auto* doubtful = reinterpret_cast<Doubtful*>(on.scratch(a.kName, sizeof(Doubtful)));
  with_real_type(a.y.dtype, [&]<class T>() {
    for (int64_t at = 0; at < a.y.numel(); at += kMostValues)
      draw(a, a.y.as<T>() + at, a.first + at, static_cast<int>(std::min(kMostValues, a.y.numel() - at)),
           doubtful, on.stream);
  });
}

}  // namespace tessera

// Normally distributed values with the bits that the CPU draws.
//
// Both devices compute the same formula in fp64, but log and cos come from the C library there and from
// CUDA's here. Each is within 2 units in the last place of the exact value, so the results of both differ by
// less than kDoubt. Rounded to fp32 they are equal, unless a border between two fp32 numbers lies as near as
// that: so for one value in 4 million. The kernel lists these, and the host computes them again.
#include <algorithm>
#include <bit>
#include <span>

#include "kernels/base/master.h"
#include "kernels/base/random.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostValues = int64_t{1} << 26;  // of a launch: 16 of them are doubtful
constexpr int kMostDoubtful = 1024;
constexpr double kDoubt = 0x1p-46;  // relative: 64 units in the last place of fp64

template <class T>
void copy(T* to, T value, cudaStream_t stream) {
  TESSERA_CUDA(cudaMemcpyAsync(to, &value, sizeof(T), cudaMemcpyDefault, stream));
  TESSERA_CUDA(cudaStreamSynchronize(stream));  // `value` ends here
}

// In the workspace
struct Doubtful {
  int count;
  int at[kMostDoubtful];
};

// Where the values go: fp32, or the halves of masters, of which `low` may be null
struct Floats {
  float* y;
  Floats from(int64_t i) const { return {y + i}; }
  __device__ void write(int i, float value) const { y[i] = value; }
  void write_from_host(int i, float value, cudaStream_t stream) const { copy(y + i, value, stream); }
};
struct Halves {
  uint16_t *y, *low;
  Halves from(int64_t i) const { return {y + i, low ? low + i : nullptr}; }
  __device__ void write(int i, float value) const {
    const SplitMaster split = split_master(__float_as_uint(value));
    y[i] = split.weight;
    if (low) low[i] = split.low;
  }
  void write_from_host(int i, float value, cudaStream_t stream) const {
    const SplitMaster split = split_master(std::bit_cast<uint32_t>(value));
    copy(y + i, split.weight, stream);
    if (low) copy(low + i, split.low, stream);
  }
};

template <class To>
__global__ __launch_bounds__(kThreads) void random_normal_kernel(To to, int count, Philox random,
                                                                 int64_t first, double deviation,
                                                                 Doubtful* doubtful) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= count) return;
  const double value = deviation * random.normal(static_cast<uint64_t>(first + i));
  to.write(i, static_cast<float>(value));
  if (static_cast<float>(value * (1 - kDoubt)) == static_cast<float>(value * (1 + kDoubt))) return;
  const int place = atomicAdd(&doubtful->count, 1);
  if (place < kMostDoubtful) doubtful->at[place] = i;
}

// Values first .. first + count of the sequence
template <class To>
void draw(const RandomNormal& a, const To& to, int64_t first, int count, Doubtful* doubtful,
          cudaStream_t stream) {
  const Philox random(a.seed, a.stream);
  TESSERA_CUDA(cudaMemsetAsync(doubtful, 0, sizeof(doubtful->count), stream));
  random_normal_kernel<To><<<static_cast<unsigned>(cuda::divide_up(count, kThreads)), kThreads, 0, stream>>>(
      to, count, random, first, a.deviation, doubtful);
  TESSERA_CUDA_LAUNCHED();
  Doubtful found;
  TESSERA_CUDA(cudaMemcpyAsync(&found, doubtful, sizeof(found), cudaMemcpyDefault, stream));
  TESSERA_CUDA(cudaStreamSynchronize(stream));
  check(found.count <= kMostDoubtful, "{}: {} of {} values are doubtful, expected at most {}", a.kName,
        found.count, count, kMostDoubtful);
  for (const int at : std::span(found.at, static_cast<size_t>(found.count)))
    to.write_from_host(at, static_cast<float>(a.deviation * random.normal(static_cast<uint64_t>(first + at))),
                       stream);
}

}  // namespace

void CudaBackend::run_op(const RandomNormal& a, const Launch& on) {
  auto* doubtful = reinterpret_cast<Doubtful*>(on.scratch(a.kName, sizeof(Doubtful)));
  const auto draw_all = [&](const auto& to) {
    for (int64_t at = 0; at < a.y.numel(); at += kMostValues)
      draw(a, to.from(at), a.first + at, static_cast<int>(std::min(kMostValues, a.y.numel() - at)), doubtful,
           on.stream);
  };
  if (a.y.dtype == DType::kF32)
    draw_all(Floats{a.y.as<float>()});
  else
    draw_all(Halves{a.y.as<uint16_t>(), a.low.as<uint16_t>()});
}

}  // namespace tessera

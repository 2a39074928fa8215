// LargestLogits. A block has a row. It finds the K-th largest logit by radix select: a float's bits as a key
// that ascends with it, of which four rounds settle eight bits each, from the highest ones down. A round
// counts, of the keys that agree with what is settled, those with each value of the next eight bits, and then
// takes the value under which the K-th largest lies. The keys above it are all taken, and of equal ones as
// many as are missing, from the lowest column on; columns are written in their order, a tile of the block's
// threads at a time.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tessera {
namespace {

constexpr int kThreads = 512, kBits = 8, kValues = 1 << kBits;

// Ascends with x
__device__ unsigned key_of(float x) {
  const unsigned bits = __float_as_uint(x == 0 ? 0.0f : x);  // -0 is 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Threshold {
  unsigned key;
  int equal;  // so many of the keys that are equal to it are taken
};

template <class T>
__device__ Threshold find_threshold(const T* row, int vocab_size, int count, int (&counts)[kValues],
                                    Threshold& found) {
  if (threadIdx.x == 0) found = {0, count};
  for (int shift = 32 - kBits; shift >= 0; shift -= kBits) {
    for (int i = threadIdx.x; i < kValues; i += kThreads) counts[i] = 0;
    __syncthreads();
    const unsigned settled = found.key;
    for (int v = threadIdx.x; v < vocab_size; v += kThreads) {
      const unsigned key = key_of(static_cast<float>(row[v]));
      const bool agrees = shift + kBits == 32 || key >> (shift + kBits) == settled >> (shift + kBits);
      if (agrees) atomicAdd(&counts[key >> shift & (kValues - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int value = kValues - 1, missing = found.equal;
      for (; counts[value] < missing; --value) missing -= counts[value];
      found = {settled | static_cast<unsigned>(value) << shift, missing};
    }
    __syncthreads();
  }
  return found;
}

// How many of the threads before this one have a flag, and of all: the same barrier for the whole block
struct Counted {
  int before, all;
};
__device__ Counted count_flags(bool flag, int (&of_warps)[kMaxWarps]) {
  const unsigned votes = __ballot_sync(0xffffffffu, flag);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) of_warps[warp] = __popc(votes);
  __syncthreads();
  Counted counted{__popc(votes & ((1u << lane) - 1)), 0};
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) counted.before += of_warps[w];
    counted.all += of_warps[w];
  }
  __syncthreads();  // before the next flags take the memory
  return counted;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_logits_kernel(const T* logits, int64_t padded, int vocab_size, int count, float inverse,
                          int32_t* all_ids, float* all_values) {
  __shared__ int counts[kValues], of_warps[kMaxWarps];
  __shared__ Threshold found;
  __shared__ float maxima[kMaxWarps], scratch[kMaxWarps][1];
  const int64_t n = blockIdx.x;
  const T* row = logits + n * padded;
  int32_t* ids = all_ids + n * count;
  float* values = all_values + n * (count + 1);
  const Threshold last = find_threshold(row, vocab_size, count, counts, found);
  int taken = 0, equal = 0;  // by the tiles before
  float most = -INFINITY;    // of the others
  for (int begin = 0; begin < vocab_size; begin += kThreads) {
    const int v = begin + static_cast<int>(threadIdx.x);
    const bool inside = v < vocab_size;
    const float logit = inside ? static_cast<float>(row[v]) : 0.0f;
    const unsigned key = key_of(logit);
    const bool is_equal = inside && key == last.key;
    const Counted of_equal = count_flags(is_equal, of_warps);
    const bool takes = inside && (key > last.key || (is_equal && equal + of_equal.before < last.equal));
    const Counted of_taken = count_flags(takes, of_warps);
    if (takes) {
      ids[taken + of_taken.before] = v;
      values[taken + of_taken.before] = logit;
    } else if (inside) {
      most = fmaxf(most, logit);
    }
    equal += of_equal.all, taken += of_taken.all;
  }
  most = warp_max(most);
  if (threadIdx.x % kWarp == 0) maxima[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) most = fmaxf(most, maxima[w]);
  // The others: below the threshold, and of equal ones all but the first ones, which are as large as `most`
  float sum[1] = {};
  int surplus = 0;
  for (int v = threadIdx.x; v < vocab_size; v += kThreads) {
    const float logit = static_cast<float>(row[v]);
    const unsigned key = key_of(logit);
    if (key < last.key) sum[0] += expf((logit - most) * inverse);
  }
  if (threadIdx.x == 0) surplus = equal - last.equal;
  sum[0] += static_cast<float>(surplus);
  block_sum(sum, scratch);
  if (threadIdx.x == 0) values[count] = vocab_size > count ? most * inverse + logf(sum[0]) : -INFINITY;
}

}  // namespace

void CudaBackend::run_op(const LargestLogits& a, const Launch& on) {
  const auto count = static_cast<int>(a.ids.shape[1]), vocab_size = static_cast<int>(a.vocab_size);
  with_real_type(a.logits.dtype, [&]<class T>() {
    largest_logits_kernel<T><<<a.logits.shape[0], kThreads, 0, on.stream>>>(
        a.logits.as<T>(), a.logits.shape[1], vocab_size, count, 1 / a.temperature, a.ids.as<int32_t>(),
        a.values.as<float>());
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace tessera

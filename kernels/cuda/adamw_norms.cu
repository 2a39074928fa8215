// The norms of an AdamW step before it is made: one pass over what the step will read, of which each block
// writes three partial sums, then a block for each range, which adds them in order. The update of an element
// is the difference of two masters: what the step computes, and what is there.
#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

using cuda::adamw::kElements, cuda::adamw::load_four, cuda::adamw::Update;

constexpr int kThreads = 256;
constexpr int kAccesses = 8;          // of a thread to each array, in a small range
constexpr int64_t kMaxBlocks = 1024;  // of a range
constexpr int kMaxRanges = 48;        // of a launch: the arguments of a kernel have 4 KiB
constexpr int kSums = 3;

struct Ranges {
  struct One {
    void *param, *low;
    const void *grad, *m, *v;
    int64_t count, decayed;  // elements from `param` on; those before `decayed` decay
    uint32_t end_block;      // of the grid: a range's blocks follow those of the one before it
  };
  One range[kMaxRanges];
  int count = 0;
};

struct Blocks {
  uint32_t begin, end;
};
__device__ __forceinline__ Blocks blocks_of(const Ranges& ranges, int at) {
  return {at > 0 ? ranges.range[at - 1].end_block : 0, ranges.range[at].end_block};
}

// partials [blocks, 3]
template <class T, class G, class M>
__global__ __launch_bounds__(kThreads) void sum_squares_of_step_kernel(const __grid_constant__ Ranges ranges,
                                                                       const float* norms, int64_t norm_count,
                                                                       const float* verdict, Update update,
                                                                       float* partials) {
  float sums[kSums] = {};
  int at = 0;
  while (blockIdx.x >= ranges.range[at].end_block) ++at;
  const Ranges::One& range = ranges.range[at];
  const Blocks blocks = blocks_of(ranges, at);
  const auto p = cuda::adamw::parameters<T>(range.param, range.low);
  const G* grad = static_cast<const G*>(range.grad);
  const M *m = static_cast<const M*>(range.m), *v = static_cast<const M*>(range.v);
  const auto add = [&](float weight, float gradient, float m32, float v32, float keep) {
    const float change = update(weight, gradient, m32, v32, keep) - weight;
    gradient *= update.clip;
    sums[0] += weight * weight, sums[1] += gradient * gradient, sums[2] += change * change;
  };
  const int64_t stride = int64_t{blocks.end - blocks.begin} * kThreads * kElements;
  const bool changes = cuda::adamw::begin(update, norms, norm_count, verdict);
  for (int64_t first = (int64_t{blockIdx.x - blocks.begin} * kThreads + threadIdx.x) * kElements;
       changes && first < range.count; first += stride) {
    const float keep = first < range.decayed ? update.keep : 1.0f;
    if (first + kElements <= range.count) {
      float p4[kElements], g4[kElements], m4[kElements], v4[kElements];
      p.load(first, p4);
      load_four(grad + first, g4), load_four(m + first, m4), load_four(v + first, v4);
#pragma unroll
      for (int i = 0; i < kElements; ++i) add(p4[i], g4[i], m4[i], v4[i], keep);
      continue;
    }
    for (int64_t i = first; i < range.count; ++i)
      add(p.load_one(i), static_cast<float>(grad[i]), static_cast<float>(m[i]), static_cast<float>(v[i]),
          keep);
  }
  __shared__ float scratch[kMaxWarps][kSums];
  block_sum(sums, scratch);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) partials[int64_t{blockIdx.x} * kSums + i] = sums[i];
  }
}

// A block for each range
__global__ __launch_bounds__(kThreads) void add_squares_kernel(const __grid_constant__ Ranges ranges,
                                                               const float* partials, float* sums_of_ranges) {
  const Blocks blocks = blocks_of(ranges, static_cast<int>(blockIdx.x));
  float sums[kSums] = {};
  for (uint32_t block = blocks.begin + threadIdx.x; block < blocks.end; block += kThreads) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += partials[int64_t{block} * kSums + i];
  }
  __shared__ float scratch[kMaxWarps][kSums];
  block_sum(sums, scratch);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums_of_ranges[blockIdx.x * kSums + i] = sums[i];
  }
}

// A tensor from an element on
void* from_element(const Tensor& tensor, int64_t first) {
  return tensor ? tensor.as<char>() + first * static_cast<int64_t>(size_of(tensor.dtype)) : nullptr;
}

}  // namespace

void CudaBackend::run_op(const AdamWNorms& a, const Launch& on) {
  const AdamW& step = a.step;
  const Update update = cuda::adamw::update_of(step);
  auto* partials = reinterpret_cast<float*>(
      on.scratch(a.kName, kMaxRanges * kMaxBlocks * kSums * static_cast<int64_t>(sizeof(float))));
  Ranges ranges{};
  int64_t blocks = 0, done = 0;  // ranges that were summed
  const auto launch = [&] {
    if (ranges.count == 0) return;
    if (blocks > 0) {
      cuda::adamw::with_types(step.parts.front(), [&]<class T, class G, class M>() {
        sum_squares_of_step_kernel<T, G, M>
            <<<blocks, kThreads, 0, on.stream>>>(ranges, step.grad_norm.as<float>(), step.grad_norm.numel(),
                                                 step.verdict.as<float>(), update, partials);
      });
      TESSERA_CUDA_LAUNCHED();
    }
    add_squares_kernel<<<ranges.count, kThreads, 0, on.stream>>>(ranges, partials,
                                                                 a.sums.as<float>() + done * kSums);
    TESSERA_CUDA_LAUNCHED();
    done += ranges.count;
    ranges.count = 0, blocks = 0;
  };
  for (const AdamW::Part& part : step.parts)
    check_aligned(
        a.kName,
        {{"param", part.param}, {"low", part.low}, {"grad", part.grad}, {"m", part.m}, {"v", part.v}});
  for (const AdamWNorms::Range& range : a.ranges) {
    const AdamW::Part& part = step.parts[range.part];
    const int64_t each = kThreads * kElements * kAccesses;
    blocks += std::min(kMaxBlocks, cuda::divide_up(range.count, each));
    ranges.range[ranges.count++] = {.param = from_element(part.param, range.first),
                                    .low = from_element(part.low, range.first),
                                    .grad = from_element(part.grad, range.first),
                                    .m = from_element(part.m, range.first),
                                    .v = from_element(part.v, range.first),
                                    .count = range.count,
                                    .decayed = part.decayed - range.first,
                                    .end_block = static_cast<uint32_t>(blocks)};
    if (ranges.count == kMaxRanges) launch();
  }
  launch();
}

}  // namespace tessera

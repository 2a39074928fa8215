// Learned sinks around the kernels of attention (kernels/attention/sinks.h).
//
//   apply_kernel     kLanes lanes a row:  out *= 1 / (1 + exp(s - LSE)),  LSE = log(exp(LSE) + exp(s))
//   sum_kernel       kLanes lanes a row:  exp(s - LSE) rowsum(dout out);  a CTA adds up kSinkRows rows
//   statistics_sum_kernel   the same of rows whose LSE and rowsum(dout out) are there, a thread a row
//   gradient_kernel  a CTA a head:  ds = -(the sum of what the CTAs of these found), in their order
//
// A row whose scores are all -inf has out = 0 and LSE = -inf, and then LSE = s.
#include <cuda_bf16.h>

#include "kernels/attention/common/dot.cuh"
#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/view.h"
#include "kernels/attention/sinks.h"

namespace tessera::attention {
namespace {

constexpr int kThreads = 256, kLanes = 8, kRowsAtOnce = kThreads / kLanes;
constexpr unsigned kWholeWarp = ~0u;
constexpr int64_t kChunk = 16;  // bytes that a lane loads at a time

struct Rows {
  int64_t count;  // batch x tokens
  int tokens, chunks;

  template <class T>
  __device__ __forceinline__ T* begin(const View<T>& heads, int64_t row, int head) const {
    return heads.head_begin(row / tokens, head) + row % tokens * heads.row;
  }
  // The place of a row in a tensor [batch, heads, tokens]
  __device__ __forceinline__ int64_t number(int64_t row, int head, int heads) const {
    return (row / tokens * heads + head) * tokens + row % tokens;
  }
};
template <class T>
Rows rows_of(const AttnProblem& p) {
  return {.count = p.batch * p.tokens,
          .tokens = static_cast<int>(p.tokens),
          .chunks = static_cast<int>(p.head_dim * static_cast<int64_t>(sizeof(T)) / kChunk)};
}

__device__ __forceinline__ void multiply(float* values, float factor) {
  float4 four = *reinterpret_cast<const float4*>(values);
  four.x *= factor, four.y *= factor, four.z *= factor, four.w *= factor;
  *reinterpret_cast<float4*>(values) = four;
}
__device__ __forceinline__ void multiply(__nv_bfloat16* values, float factor) {
  uint4 eight = *reinterpret_cast<const uint4*>(values);
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&eight);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __bfloat1622float2(pairs[i]);
    pairs[i] = __floats2bfloat162_rn(two.x * factor, two.y * factor);
  }
  *reinterpret_cast<uint4*>(values) = eight;
}

__device__ __forceinline__ float dot(const float* x, const float* y) {
  const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(y);
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w)));
}
__device__ __forceinline__ float dot(const __nv_bfloat16* x, const __nv_bfloat16* y) {
  return dot8(*reinterpret_cast<const uint4*>(x), *reinterpret_cast<const uint4*>(y));
}

template <class T>
__global__ void __launch_bounds__(kThreads) apply_kernel(View<T> out, float* lse, const T* sinks, Rows rows) {
  const int head = blockIdx.y, lane = threadIdx.x % kLanes;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsAtOnce + threadIdx.x / kLanes;
  const bool there = row < rows.count;
  float* const own = lse + (there ? rows.number(row, head, gridDim.y) : 0);
  const float of_keys = *own, sink = static_cast<float>(sinks[head]);
  __syncwarp();  // all lanes of a row have read it
  if (!there) return;
  const float above = fmaxf(of_keys, sink), below = fminf(of_keys, sink);
  if (lane == 0) *own = of_keys == -INFINITY ? sink : above + log1pf(expf(below - above));
  const float share = of_keys == -INFINITY ? 0 : 1 / (1 + expf(sink - of_keys));
  T* const values = rows.begin(out, row, head);
  for (int c = lane; c < rows.chunks; c += kLanes) multiply(values + c * (kChunk / sizeof(T)), share);
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  return x;
}
// For the first thread
__device__ __forceinline__ float sum_of_cta(float x) {
  __shared__ float warps[kThreads / 32];
  x = sum_of_warp(x);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();  // the sums of all warps are there
  float sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += warps[warp];
  return sum;
}

// sums [heads, CTAs of a head]
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(View<const T> out, View<const T> dout, const float* lse, const T* sinks, Rows rows,
               float* sums) {
  const int head = blockIdx.y, lane = threadIdx.x % kLanes;
  const float sink = static_cast<float>(sinks[head]);
  float sum = 0;
  for (int i = 0; i < kSinkRows / kRowsAtOnce; ++i) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kSinkRows + i * kRowsAtOnce + threadIdx.x / kLanes;
    if (row >= rows.count) break;
    const T *const o = rows.begin(out, row, head), *const d = rows.begin(dout, row, head);
    float delta = 0;
    for (int c = lane; c < rows.chunks; c += kLanes)
      delta += dot(o + c * (kChunk / sizeof(T)), d + c * (kChunk / sizeof(T)));
    const float of_row = lse[rows.number(row, head, gridDim.y)];
    sum += of_row == -INFINITY ? 0 : expf(sink - of_row) * delta;
  }
  sum = sum_of_cta(sum);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(head) * gridDim.x + blockIdx.x] = sum;
}

// The same of TiledRowStatistics. A CTA takes kSinkRows rows of a head, of all its tiles in all sequences.
static_assert(kSinkRows == kThreads);
template <class T>
__global__ void __launch_bounds__(kThreads)
    statistics_sum_kernel(TiledRowStatistics rows, int64_t batch, const T* sinks, float* sums) {
  const int head = blockIdx.y;
  const float log2_sink = static_cast<float>(sinks[head]) * kLog2e;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kSinkRows + threadIdx.x, of_head = rows.tiles * rows.rows;
  float sum = 0;
  if (row < batch * of_head) {
    const int64_t tile = (row / of_head * gridDim.y + head) * rows.tiles + row % of_head / rows.rows;
    const float* statistics = rows.data + tile * 2 * rows.rows + row % rows.rows;
    sum = exp2f(log2_sink - statistics[0]) * statistics[rows.rows];
  }
  sum = sum_of_cta(sum);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(head) * gridDim.x + blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const float* sums, int count, T* dsinks, bool add) {
  const int head = blockIdx.x;
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += sums[static_cast<int64_t>(head) * count + i];
  sum = sum_of_cta(sum);
  if (threadIdx.x == 0) dsinks[head] = static_cast<T>((add ? static_cast<float>(dsinks[head]) : 0.0f) - sum);
}

template <class T>
AttnStatus apply(const AttnForward& f, CUstream_st* stream) {
  const Rows rows = rows_of<T>(f.problem);
  const dim3 grid(static_cast<unsigned>((rows.count + kRowsAtOnce - 1) / kRowsAtOnce),
                  static_cast<unsigned>(f.problem.heads));
  return launch(apply_kernel<T>, grid, kThreads, 0, stream, view<T>(f.out), f.lse,
                static_cast<const T*>(f.sinks), rows);
}

template <class T>
AttnStatus gradients(const AttnBackward& f, const TiledRowStatistics& statistics, float* sums,
                     CUstream_st* stream) {
  const Rows rows = rows_of<T>(f.problem);
  const bool known = statistics.data != nullptr;
  const auto ctas = static_cast<unsigned>(
                 known ? (f.problem.batch * statistics.tiles * statistics.rows + kSinkRows - 1) / kSinkRows
                       : sink_sums(f.problem)),
             heads = static_cast<unsigned>(f.problem.heads);
  const auto* sinks = static_cast<const T*>(f.sinks);
  const AttnStatus status =
      known ? launch(statistics_sum_kernel<T>, dim3(ctas, heads), kThreads, 0, stream, statistics,
                     f.problem.batch, sinks, sums)
            : launch(sum_kernel<T>, dim3(ctas, heads), kThreads, 0, stream, view<const T>(f.out),
                     view<const T>(f.dout), f.lse, sinks, rows, sums);
  if (status != ATTN_OK) return status;
  return launch(gradient_kernel<T>, dim3(heads), kThreads, 0, stream, static_cast<const float*>(sums),
                static_cast<int>(ctas), static_cast<T*>(f.dsinks), f.add_dsinks != 0);
}

}  // namespace

AttnStatus apply_sinks(const AttnForward& f, CUstream_st* stream) {
  return f.problem.dtype == ATTN_BF16 ? apply<__nv_bfloat16>(f, stream) : apply<float>(f, stream);
}

AttnStatus sink_gradients(const AttnBackward& f, TiledRowStatistics rows, void* workspace, CUstream_st* stream) {
  const SinkWorkspace own(workspace, f.problem);
  return f.problem.dtype == ATTN_BF16 ? gradients<__nv_bfloat16>(f, rows, own.sums, stream)
                                      : gradients<float>(f, rows, own.sums, stream);
}

}  // namespace tessera::attention

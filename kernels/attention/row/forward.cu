// Forward attention, one CTA a query row:
//
//   s_j = scale q k_j^T            for every key j that the row sees, into shared memory     [N]
//   m = max s,  p_j = exp(s_j - m),  sum = sum of p
//   o = (sum of p_j v_j) / sum,  LSE = m + ln(sum)                                           [D]
//
// Nothing N x N reaches device memory, and that is all this rung shows: each row reads all
// its keys and values again (from L2, if they fit), two multiplications to an element
// loaded, and N is limited by shared memory.
#include "kernels/attention/row/kernels.h"
#include "kernels/attention/row/lanes.cuh"

namespace tessera::attention::row {
namespace {

struct Args : ForwardTensors<bf16>, Sizes {
  float* lse;  // [B, H, N]
};

template <int kHeadDim, class Score>
__global__ void __launch_bounds__(kThreads) forward_kernel(const Args a) {
  extern __shared__ float scores[];  // [keys]
  constexpr int kAtATime = kGroups<kHeadDim>;
  const int t = blockIdx.x % a.tokens, head_index = blockIdx.x / a.tokens;
  const int b = head_index / a.heads, h = head_index % a.heads, kv_head = h / a.group;
  const int keys = a.keys_of(t);
  const int group = threadIdx.x / kLanes<kHeadDim>, column = threadIdx.x % kLanes<kHeadDim> * 8;
  const bf16* k = a.k.head_begin(b, kv_head) + column;
  const bf16* v = a.v.head_begin(b, kv_head) + column;

  const Eight q = Eight::load(a.q.head_begin(b, h) + t * a.q.row + column);
  float max = -INFINITY;
#pragma unroll 4
  for (int first = 0; first < keys; first += kAtATime) {
    // Past the end the last key once more: dot() needs every lane.
    const int j = min(first + group, keys - 1);
    const float s = Score::value(a.score, dot<kHeadDim>(q, Eight::load(k + j * a.k.row)));
    max = fmaxf(max, s);
    scores[j] = s;  // by all lanes of the group, and past the end by several groups: the same value
  }
  max = across(max, [](float x, float y) { return fmaxf(x, y); });  // and past its barriers scores are there
  const float offset = max == -INFINITY ? 0 : max;  // a row of scores that are all -inf: o = 0, LSE = -inf

  float sum = 0;
  for (int j = threadIdx.x; j < keys; j += kThreads) sum += scores[j] = exp2f((scores[j] - offset) * kLog2e);
  sum = across(sum, [](float x, float y) { return x + y; });  // and past its barriers so are probabilities

  Eight o;
#pragma unroll 4
  for (int j = group; j < keys; j += kAtATime) o.add(scores[j], Eight::load(v + j * a.v.row));
  store_sum<kHeadDim>(o, a.out.head_begin(b, h) + t * a.out.row, sum == 0 ? 0 : 1 / sum);
  if (threadIdx.x == 0) a.lse[blockIdx.x] = offset + logf(sum);
}

}  // namespace

AttnStatus forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const Args args = {tensors_of<bf16>(f), sizes_of(p), f.lse};
  const auto rows = static_cast<unsigned>(p.batch * p.heads * p.tokens);
  const int bytes = static_cast<int>(p.tokens) * static_cast<int>(sizeof(float));
  return launch(p.head_dim == 64 ? forward_kernel<64, ScaledScore> : forward_kernel<128, ScaledScore>, rows,
                kThreads, bytes, stream, args);
}

}  // namespace tessera::attention::row

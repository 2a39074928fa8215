// Backward attention, one CTA a row, without atomics: the same bits every time.
//
//   queries kernel, a CTA a query row i, over the keys j that it sees:
//     delta_i = dO_i O_i^T
//     p = exp(scale q_i k_j^T - LSE_i),  ds = p (dO_i v_j^T - delta_i),  dq_i += scale ds k_j
//   keys kernel, a CTA a key row j, over the queries i that see it, of every query head that shares K and V:
//     p and ds as above;  dv_j += p dO_i,  dk_j += scale ds q_i
//
// The scores are computed twice, from the LSE that the forward saved: neither N x N matrix exists anywhere.
#include "kernels/attention/row/kernels.h"
#include "kernels/attention/row/lanes.cuh"
#include "kernels/attention/workspace.h"

namespace tessera::attention::row {
namespace {

struct Args : BackwardTensors<bf16>, Sizes {
  const float* lse;  // [B, H, N]
  float* delta;      // [B, H, N]
};

template <int kHeadDim, class Score>
__global__ void __launch_bounds__(kThreads) queries_kernel(const Args a) {
  constexpr int kAtATime = kGroups<kHeadDim>;
  const int i = blockIdx.x % a.tokens, head_index = blockIdx.x / a.tokens;
  const int b = head_index / a.heads, h = head_index % a.heads, kv_head = h / a.group;
  const int keys = a.keys_of(i);
  const int group = threadIdx.x / kLanes<kHeadDim>, column = threadIdx.x % kLanes<kHeadDim> * 8;
  const bf16* k = a.k.head_begin(b, kv_head) + column;
  const bf16* v = a.v.head_begin(b, kv_head) + column;

  const Eight q = Eight::load(a.q.head_begin(b, h) + i * a.q.row + column);
  const Eight dout = Eight::load(a.dout.head_begin(b, h) + i * a.dout.row + column);
  const float delta = dot<kHeadDim>(dout, Eight::load(a.out.head_begin(b, h) + i * a.out.row + column));
  if (threadIdx.x == 0) a.delta[blockIdx.x] = delta;
  const Score score(a.score);
  const float log2_sum_exp = log2_sum_exp_of(a.lse[blockIdx.x]);

  Eight dq;
#pragma unroll 2
  for (int first = 0; first < keys; first += kAtATime) {
    const int j = first + group, loaded = min(j, keys - 1);  // past the end: dot() needs every lane
    const Eight key = Eight::load(k + loaded * a.k.row), value = Eight::load(v + loaded * a.v.row);
    const float p = exp2f(score.log2_above(dot<kHeadDim>(q, key), log2_sum_exp));
    const float ds = p * (dot<kHeadDim>(dout, value) - delta);
    if (j < keys) dq.add(ds, key);
  }
  store_sum<kHeadDim>(dq, a.dq.head_begin(b, h) + i * a.dq.row, Score::derivative(a.score));
}

template <int kHeadDim, class Score>
__global__ void __launch_bounds__(kThreads) keys_kernel(const Args a) {
  constexpr int kAtATime = kGroups<kHeadDim>;
  const int j = blockIdx.x % a.tokens, kv_head_index = blockIdx.x / a.tokens;
  const int b = kv_head_index / a.kv_heads, kv_head = kv_head_index % a.kv_heads;
  const int group = threadIdx.x / kLanes<kHeadDim>, column = threadIdx.x % kLanes<kHeadDim> * 8;

  const Eight key = Eight::load(a.k.head_begin(b, kv_head) + j * a.k.row + column);
  const Eight value = Eight::load(a.v.head_begin(b, kv_head) + j * a.v.row + column);
  const Score score(a.score);

  Eight dk, dv;
  for (int h = kv_head * a.group; h < (kv_head + 1) * a.group; ++h) {
    const bf16* q = a.q.head_begin(b, h) + column;
    const bf16* dout = a.dout.head_begin(b, h) + column;
    const int64_t statistics = static_cast<int64_t>(b * a.heads + h) * a.tokens;
#pragma unroll 2
    for (int first = a.first_query_of(j); first < a.tokens; first += kAtATime) {
      const int i = first + group, loaded = min(i, a.tokens - 1);  // past the end: dot() needs every lane
      const Eight query = Eight::load(q + loaded * a.q.row),
                  gradient = Eight::load(dout + loaded * a.dout.row);
      const float log2_sum_exp = log2_sum_exp_of(a.lse[statistics + loaded]),
                  delta = a.delta[statistics + loaded];
      const float p = exp2f(score.log2_above(dot<kHeadDim>(query, key), log2_sum_exp));
      const float ds = p * (dot<kHeadDim>(gradient, value) - delta);
      if (i >= a.tokens) continue;
      dk.add(ds, query);
      dv.add(p, gradient);
    }
  }
  store_sum<kHeadDim>(dk, a.dk.head_begin(b, kv_head) + j * a.dk.row, Score::derivative(a.score));
  store_sum<kHeadDim>(dv, a.dv.head_begin(b, kv_head) + j * a.dv.row, 1);
}

}  // namespace

AttnStatus backward(const AttnBackward& f, int /*arch*/, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const DeltaWorkspace workspace(f.workspace, p);
  const Args args = {tensors_of<bf16>(f), sizes_of(p), f.lse, workspace.delta};
  const auto queries = static_cast<unsigned>(p.batch * p.heads * p.tokens),
             keys = static_cast<unsigned>(p.batch * p.kv_heads * p.tokens);
  const bool narrow = p.head_dim == 64;
  const AttnStatus status =
      launch(narrow ? queries_kernel<64, ScaledScore> : queries_kernel<128, ScaledScore>, queries, kThreads,
             0, stream, args);
  if (status != ATTN_OK) return status;
  return launch(narrow ? keys_kernel<64, ScaledScore> : keys_kernel<128, ScaledScore>, keys, kThreads, 0,
                stream, args);
}

}  // namespace tessera::attention::row

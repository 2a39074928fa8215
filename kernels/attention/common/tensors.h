// The arguments of a call in the form that kernels take: tensors as views, sizes as int.
#pragma once

#include "kernels/attention/common/score.cuh"

namespace tessera::attention {

template <class T>
struct ForwardTensors {
  View<const T> q, k, v;
  View<T> out;
};

template <class T>
struct BackwardTensors {
  View<const T> q, k, v, out, dout;
  View<T> dq, dk, dv;
};

struct Sizes {
  int tokens, heads, kv_heads;
  int group;  // query heads that share a head of K and V: heads / kv_heads
  ScoreArgs score;
  bool causal;

  // For causal and full masks. A query sees the keys before keys_of(query); first_query_of(key) is the first
  // query that sees the key.
  __device__ __forceinline__ int keys_of(int query) const { return causal ? query + 1 : tokens; }
  __device__ __forceinline__ int first_query_of(int key) const { return causal ? key : 0; }
};

template <class T>
ForwardTensors<T> tensors_of(const AttnForward& f) {
  return {.q = view<const T>(f.q), .k = view<const T>(f.k), .v = view<const T>(f.v), .out = view<T>(f.out)};
}

template <class T>
BackwardTensors<T> tensors_of(const AttnBackward& f) {
  return {.q = view<const T>(f.q),
          .k = view<const T>(f.k),
          .v = view<const T>(f.v),
          .out = view<const T>(f.out),
          .dout = view<const T>(f.dout),
          .dq = view<T>(f.dq),
          .dk = view<T>(f.dk),
          .dv = view<T>(f.dv)};
}

inline Sizes sizes_of(const AttnProblem& p) {
  return {.tokens = static_cast<int>(p.tokens),
          .heads = static_cast<int>(p.heads),
          .kv_heads = static_cast<int>(p.kv_heads),
          .group = static_cast<int>(p.heads / p.kv_heads),
          .score = score_args_of(p),
          .causal = p.mask.causal != 0};
}

}  // namespace tessera::attention

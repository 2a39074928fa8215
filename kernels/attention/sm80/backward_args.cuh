// What the three kernels of the backward share.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/common/view.h"

namespace tessera::attention::sm80 {

using bf16 = __nv_bfloat16;

struct BackwardArgs {
  View<const bf16> q, k, v, out, dout;
  View<bf16> dq, dk, dv;
  const float* lse;                       // [B, H, N]
  float *log2_sum_exp, *delta, *dq_sums;  // see BackwardWorkspace
  uint32_t* counters;
  int tokens, padded_tokens, query_blocks, key_blocks;
  int heads, kv_heads, group;  // group: query heads that share a head of K and V
  float scale;
};

}  // namespace tessera::attention::sm80

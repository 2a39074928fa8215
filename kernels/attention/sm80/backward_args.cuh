// What the three kernels of the backward share.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/common/tensors.h"
#include "kernels/attention/mask.h"

namespace tessera::attention::sm80 {

using bf16 = __nv_bfloat16;

struct BackwardArgs : BackwardTensors<bf16> {
  const float* lse;                       // [B, H, N]
  float *log2_sum_exp, *delta, *dq_sums;  // see BackwardWorkspace
  uint32_t* counters;
  int tokens, padded_tokens, query_blocks, key_blocks;
  int heads, kv_heads, group;  // as in Sizes, whose order costs these kernels registers
  float scale;                 // ScoreArgs in its place would cost registers
  int head_dim;
  DropoutMask dropout = DropoutMask({});
  Mask mask;     // of the first sequence; of kernels for any mask
  Alibi alibi;   // of rules with a bias
  ScoreCap cap;  // of rules with a cap

  __device__ __forceinline__ ScoreArgs score() const { return {scale}; }
};

}  // namespace tessera::attention::sm80

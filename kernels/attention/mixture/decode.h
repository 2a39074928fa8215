// A mixture of blocks over a cache: the means of whole blocks, which the cache keeps, and attention of one
// new token of each sequence. Blocks are counted from the first token of a sequence, as of one document.
#pragma once

#include <cstddef>

#include "kernels/attention/attention.h"

namespace tessera::attention::mixture {

// The means of the blocks that tokens starts[b] to starts[b] + tokens - 1 complete; idle where starts[b] < 0
struct CompleteMeans {
  AttnDtype dtype;
  AttnTensor k;           // [batch, capacity, kv_heads, head_dim]
  const int32_t* starts;  // [batch], device memory
  int64_t batch, capacity, kv_heads, tokens;
  int head_dim, size;  // of a block
  float* means;        // [batch, kv_heads, slots, head_dim], slots = capacity / size rounded up
};
AttnStatus complete_means(const CompleteMeans& a, CUstream_st* stream);

// As attn_decode(), where each query head chooses blocks; a.problem.blocks is not read
struct MixtureDecode {
  AttnDecode call{};
  AttnChoice choice{};
  const float* means = nullptr;  // of every whole block before the new token's
};
size_t decode_workspace(const AttnDecodeProblem& p, const AttnChoice& choice);  // bytes
AttnStatus decode(const MixtureDecode& a, CUstream_st* stream);

}  // namespace tessera::attention::mixture

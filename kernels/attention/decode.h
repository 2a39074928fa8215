// choose_decode: attention of one new token of each sequence over a cache of keys and values.
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/attention/small_cache.h"

namespace tessera {

struct DecodeShape {
  int64_t batch, heads, head_dim, kv_heads;
  int64_t capacity;  // tokens that the cache has room for, in each sequence
  // The cache has the last `capacity` tokens, in any order: a later token replaces one that is out of the
  // window
  bool ring = false;
  AttentionScores scores = {};
  // The queries are `batch` tokens of one sequence, and all of them read its cache
  bool one_cache = false;
  BlockShape blocks = {};   // sparse blocks: each call gives their list; not together with a ring
  BlockChoice choice = {};  // blocks that queries choose: each call gives the means; not together with a ring
  // A small cache: older tokens are codes, in groups, and the tensors of keys and values are rings of the
  // newest tokens
  CacheDtype cache = CacheDtype::kAuto;

  CacheFormat format() const { return {.dtype = cache, .head_dim = static_cast<int>(head_dim)}; }
  int64_t slots() const { return choice ? (capacity + choice.size - 1) / choice.size : 0; }
  int64_t cache_rows() const { return is_small(cache) ? int64_t{CacheFormat::kNewestTokens} : capacity; }
};

struct DecodePlan {
  DecodeShape shape{};
  DType dtype = DType::kF32;    // of q, the cache and the output
  float scale = 1;              // 1 / sqrt(head_dim)
  int arch = 0;                 // 0 on the CPU
  int64_t workspace_bytes = 0;  // 0 on the CPU
};

// Error: a size is not positive, or the heads are not a multiple of the key/value heads; on CUDA also: no
// kernel serves the head dim, a size or the device.
DecodePlan choose_decode(const DecodeShape& shape, DType dtype, const DeviceTraits& device);

// The planned problem as attention.h describes it. `blocks`: see MaskTables; if it is none, the problem has
// no addresses
AttnDecodeProblem attn_decode_problem(const DecodePlan& plan, const Tensor& blocks = {});

}  // namespace tessera

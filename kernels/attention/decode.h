// choose_decode: attention of one new token of each sequence over a cache of keys and values.
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/attention/small_cache.h"

namespace tessera {

struct DecodeShape {
  int64_t batch, heads, head_dim, kv_heads;
  int64_t capacity;  // tokens that the cache has room for, in each sequence
  // The cache has the last `capacity` tokens, a window, in any order: later ones have replaced those before
  bool ring = false;
  AttentionScores scores = {};
  // The queries are tokens of one sequence, whose cache all of them read: `batch` of them
  bool one_cache = false;
  BlockShape blocks = {};   // sparse blocks: each call gives their list; not of a ring
  BlockChoice choice = {};  // blocks that queries choose, not of a ring: each call gives the means
  // Small: older tokens are in groups of codes, and the caches of keys and values are rings of the newest
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

// Error: sizes that are not positive, key/value heads that do not divide the heads; on CUDA also a head dim,
// a size or a device that no kernel serves.
DecodePlan choose_decode(const DecodeShape& shape, DType dtype, const DeviceTraits& device);

// The planned problem in the terms of attention.h; `blocks`: see MaskTables, none: without addresses
AttnDecodeProblem attn_decode_problem(const DecodePlan& plan, const Tensor& blocks = {});

}  // namespace tessera

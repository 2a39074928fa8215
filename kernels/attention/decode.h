// choose_decode: attention of one new token of each sequence over a cache of keys and values.
#pragma once

#include "kernels/attention/choose.h"

namespace tessera {

struct DecodeShape {
  int64_t batch, heads, head_dim, kv_heads;
  int64_t capacity;  // tokens that the cache has room for, in each sequence
};

struct DecodePlan {
  DecodeShape shape{};
  DType dtype = DType::kF32;  // of q, the cache and the output
  float scale = 1;            // 1 / sqrt(head_dim)
  int arch = 0;               // 0 on the CPU
  int64_t workspace_bytes = 0;
};

// Error: a head dim that no kernel serves.
DecodePlan choose_decode(const DecodeShape& shape, DType dtype, const DeviceTraits& device);

}  // namespace tessera

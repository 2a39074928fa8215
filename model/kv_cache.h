// KvCache: the keys and values of texts that are being continued, one text in each slot.
//
// A token needs the keys and values of the tokens before it, and those never change: they depend on earlier
// tokens alone. So they are kept, and a new token costs one row of every product, where a forward over the
// whole text costs a row a token.
#pragma once

#include <vector>

#include "kernels/base/arena.h"
#include "model/config.h"

namespace tessera {

struct KvCache {
  struct Layer {
    Tensor k, v;  // [slots, capacity, K, D], keys after norm and rotation
  };
  std::vector<Layer> layers;
  Tensor starts;  // [slots] int32: the place of the first new token; below 0 the slot is idle. See ops.h

  int64_t slots() const { return starts.shape[0]; }
  int64_t capacity() const { return layers[0].k.shape[1]; }  // of a slot, in tokens
  KvCache slot(int64_t slot) const;                          // a view of one
};

// Room for `capacity` tokens in each of `slots` slots. All are idle once `starts` says so: it is not written.
KvCache allocate_kv_cache(Arena& arena, const ModelConfig& config, DType dtype, int64_t slots,
                          int64_t capacity);

// Bytes of one token in all layers: 2 L K D elements
int64_t kv_cache_bytes_per_token(const ModelConfig& config, DType dtype);

}  // namespace tessera

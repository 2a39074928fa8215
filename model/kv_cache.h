// KvCache: the keys and values of texts that are being continued, one text in each slot.
//
// A token needs the keys and values of the tokens before it, and those never change: they depend on earlier
// tokens alone. So they are kept, and a new token costs one row of every product, where a forward over the
// whole text costs a row a token.
//
// Of a block with a window shorter than the texts, the cache is a ring of as many rows as the window has
// tokens: a new token replaces the one that no token sees any more. Attention does not need the order of
// keys, since they are rotated already. A prompt's queries see keys that the prompt itself replaces, so they
// read keys and values from an UnrolledKeys, in the order of the text.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/base/arena.h"
#include "model/config.h"

namespace tessera {

// While a prompt of T tokens is read: what its tokens see in a block with a ring
struct UnrolledKeys {
  Tensor k, v;        // [rows, K, D], for all such blocks in turn: older tokens, and then those of the prompt
  int64_t start = 0;  // tokens of the text before the prompt
};

// While a prompt of T tokens is read that begins within a sparse block: blocks of the model with such blocks
// decode it, all of its tokens over the cache of the text.
struct DecodedPrompt {
  Tensor places;     // [T] int32, of its tokens in the text
  Tensor workspace;  // of attention
};

struct KvCache {
  struct Layer {
    // [slots, rows, K, D], keys after norm and rotation. Token t in row t; of a ring in row t % rows
    Tensor k = {}, v = {};
    bool ring = false;
    int64_t rows() const { return k.shape[1]; }
  };
  std::vector<Layer> layers;
  Tensor starts;     // [slots] int32: the place of the first new token; below 0 the slot is idle. See ops.h
  int64_t capacity;  // tokens of the text of a slot
  UnrolledKeys unrolled = {};
  DecodedPrompt decoded = {};

  int64_t slots() const { return starts.shape[0]; }
  KvCache slot(int64_t slot) const;  // a view of one
};

// Room for `capacity` tokens in each of `slots` slots. All are idle once `starts` says so: it is not written.
KvCache allocate_kv_cache(Arena& arena, const ModelConfig& config, DType dtype, int64_t slots,
                          int64_t capacity);

// Bytes of a text of so many tokens in all layers: 2 K D elements for each token, as long as a window has
// room
int64_t kv_cache_bytes(const ModelConfig& config, DType dtype, int64_t tokens);

// Where the last `tokens` tokens before token `end` of a text are in a ring of at least as many rows: in one
// run or two. visit(token, row, count), with tokens counted from the first of them
template <class Visit>
void for_each_run_of_ring(int64_t end, int64_t tokens, int64_t rows, Visit&& visit) {
  for (int64_t done = 0; done < tokens;) {
    const int64_t row = (end - tokens + done) % rows, count = std::min(tokens - done, rows - row);
    visit(done, row, count);
    done += count;
  }
}

}  // namespace tessera

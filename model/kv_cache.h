// KvCache: the keys and values of texts that are being continued, one text in each slot.
//
// A token needs the keys and values of the tokens before it. These never change, since they depend only on
// earlier tokens. So the cache stores them, and a new token costs one row of every product. Without the cache
// it would cost one row for each token of the text.
//
// If a block's window is shorter than the capacity, its cache is a ring with a row for each token of the
// window: a new token replaces the one that no token sees any more. The order of keys does not matter to
// attention, since they are already rotated. The tokens of a prompt see keys that the prompt itself replaces,
// so they read keys and values from an UnrolledKeys, in the order of the text.
//
// The cache of any other block may be small (kernels/attention/small_cache.h): older tokens are codes, and a
// ring has the newest ones. A prompt then reads the numbers that the codes stand for from an UnrolledKeys as
// well. If the capacity is at most two groups of tokens there are no codes, and the cache is as the model
// computes.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/attention/small_cache.h"
#include "kernels/base/arena.h"
#include "model/config.h"

namespace tessera {

// Whether a block with this window keeps older tokens as codes, in a cache for texts of up to `capacity`
// tokens
inline bool keeps_codes(CacheDtype cache, int64_t window, int64_t capacity) {
  return is_small(cache) && (window == Windows::kFull || window >= capacity) &&
         CacheFormat::groups_of(capacity) > 0;
}

// The keys and values that the tokens of a prompt see in a block with a ring, while the prompt is read
struct UnrolledKeys {
  Tensor k, v;        // [rows, K, D]: older tokens, then the prompt's; blocks use them one after another
  int64_t start = 0;  // the number of tokens of the text before the prompt
};

// For a prompt of T tokens that begins within a block of a sparse pattern. Layers with sparse attention then
// use decode attention: each of the T tokens is a query over the text's cache.
struct DecodedPrompt {
  Tensor places;     // [T] int32, the places of its tokens in the text
  Tensor workspace;  // for attention
};

struct KvCache {
  struct Layer {
    // [slots, rows, K, D], keys after norm and rotation. Token t is in row t, in a ring in row t % rows
    Tensor k = {}, v = {};
    bool ring = false;
    // For a small cache: the codes of older tokens, [slots, K, G, words] int32; k and v are then rings of the
    // newest tokens
    Tensor groups = {};
    CacheFormat format = {};
    // If queries choose blocks of `block` tokens: the mean key of each whole block, see CacheAppend
    Tensor means = {};
    int64_t block = 0;
    int64_t rows() const { return k.shape[1]; }
  };
  std::vector<Layer> layers;
  Tensor starts;     // [slots] int32: the place of the first new token; below 0 the slot is idle. See ops.h
  int64_t capacity;  // the most tokens of the text in a slot
  UnrolledKeys unrolled = {};
  DecodedPrompt decoded = {};
  // k, v and groups of all L layers that have codes, [L, slots, ...], as QuantiseCache takes them
  Layer small = {};

  int64_t slots() const { return starts.shape[0]; }
  KvCache slot(int64_t slot) const;  // a view of one slot
};

// Allocates room for `capacity` tokens in each of `slots` slots. `starts` is not written: slots are idle once
// it says so.
KvCache allocate_kv_cache(Arena& arena, const ModelConfig& config, DType dtype, int64_t slots,
                          int64_t capacity, CacheDtype cache = CacheDtype::kAuto);

// The bytes of a slot for `capacity` tokens in all layers: 2 K D elements for each token, for at most as many
// tokens as the window has. With a small cache: groups of codes, and a ring of the newest tokens
int64_t kv_cache_bytes(const ModelConfig& config, DType dtype, int64_t capacity,
                       CacheDtype cache = CacheDtype::kAuto);
// The bytes of the cache that are read for token number `tokens` of a text, counted from 1, including its own
// keys and values
int64_t kv_cache_bytes_read(const ModelConfig& config, DType dtype, int64_t capacity, CacheDtype cache,
                            int64_t tokens);
// The bytes that one more token takes in a cache for `capacity` tokens, while it is within every window; with
// a small cache, once its group has become codes
double kv_cache_bytes_of_token(const ModelConfig& config, DType dtype, int64_t capacity, CacheDtype cache);

// Help of --cache-dtype
inline constexpr const char* kCacheDtypes =
    "The cache of keys and values: auto (as the model computes), bf16, fp32, or all but the newest tokens as "
    "codes: fp8, int8, int4";
// The cache for --cache-dtype when the model computes in `dtype`: fp32 and bf16 become kAuto. Error: one of
// these two is not `dtype`
CacheDtype checked_cache(CacheDtype cache, DType dtype);
// " in int4" of a small cache, else nothing
inline std::string cache_text(CacheDtype cache) {
  return is_small(cache) ? fmt::format(" in {}", name_of(cache)) : "";
}

// Finds where the `tokens` tokens before token `end` of a text are, in a ring of at least as many rows: in
// one or two runs. Calls visit(token, row, count) for each run; tokens are counted from the first of them.
template <class Visit>
void for_each_run_of_ring(int64_t end, int64_t tokens, int64_t rows, Visit&& visit) {
  for (int64_t done = 0; done < tokens;) {
    const int64_t row = (end - tokens + done) % rows, count = std::min(tokens - done, rows - row);
    visit(done, row, count);
    done += count;
  }
}

}  // namespace tessera

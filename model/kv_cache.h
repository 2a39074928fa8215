// KvCache: the keys and values of texts that are being continued, one text in each slot.
//
// A token needs the keys and values of the tokens before it. They never change, since they depend only on
// earlier tokens. So the cache stores them, and a new token costs one row of every product. A forward over
// the whole text costs one row for each token.
//
// If a block's window is shorter than the capacity, its cache is a ring with a row for each token of the
// window: a new token replaces the one that no token sees any more. Attention does not need the order of
// keys, since they are rotated already. A prompt's queries see keys that the prompt itself replaces, so
// they read keys and values from an UnrolledKeys, in the order of the text.
//
// The cache of any other block may be small (kernels/attention/small_cache.h): older tokens are codes, and
// a ring has the newest ones. A prompt reads the numbers that the codes stand for from an UnrolledKeys as
// well. A cache for at most two groups of tokens has no codes: it is as the model computes.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/attention/small_cache.h"
#include "kernels/base/arena.h"
#include "model/config.h"

namespace tessera {

// Whether a block with this window keeps codes of texts that may grow to `capacity` tokens
inline bool keeps_codes(CacheDtype cache, int64_t window, int64_t capacity) {
  return is_small(cache) && (window == Windows::kFull || window >= capacity) &&
         CacheFormat::groups_of(capacity) > 0;
}

// The keys and values that a prompt's tokens see in a block with a ring, while the prompt is read
struct UnrolledKeys {
  Tensor k, v;        // [rows, K, D]: older tokens, and then the prompt's. Such blocks use them one by one
  int64_t start = 0;  // tokens of the text before the prompt
};

// For a prompt of T tokens that begins within a block of a sparse pattern. Layers with sparse attention
// then use decode attention: each of the T tokens is a query over the text's cache.
struct DecodedPrompt {
  Tensor places;     // [T] int32, of its tokens in the text
  Tensor workspace;  // of attention
};

struct KvCache {
  struct Layer {
    // [slots, rows, K, D], keys after norm and rotation. Token t in row t; of a ring in row t % rows
    Tensor k = {}, v = {};
    bool ring = false;
    // Of a small cache: older tokens [slots, K, G, words] int32; k and v are then rings of the newest
    Tensor groups = {};
    CacheFormat format = {};
    // Where queries choose blocks of `block` tokens: the mean key of each whole block, see CacheAppend
    Tensor means = {};
    int64_t block = 0;
    int64_t rows() const { return k.shape[1]; }
  };
  std::vector<Layer> layers;
  Tensor starts;     // [slots] int32: the place of the first new token; below 0 the slot is idle. See ops.h
  int64_t capacity;  // tokens of the text of a slot
  UnrolledKeys unrolled = {};
  DecodedPrompt decoded = {};
  // k, v and groups of all layers with codes, L of them before the slots, as QuantiseCache takes them
  Layer small = {};

  int64_t slots() const { return starts.shape[0]; }
  KvCache slot(int64_t slot) const;  // a view of one
};

// Room for `capacity` tokens in each of `slots` slots. All are idle once `starts` says so: it is not written.
KvCache allocate_kv_cache(Arena& arena, const ModelConfig& config, DType dtype, int64_t slots,
                          int64_t capacity, CacheDtype cache = CacheDtype::kAuto);

// Bytes of a slot for `capacity` tokens in all layers: 2 K D elements for each token, at most as many
// tokens as the window has; with a small cache groups of codes, and a ring of the newest tokens
int64_t kv_cache_bytes(const ModelConfig& config, DType dtype, int64_t capacity,
                       CacheDtype cache = CacheDtype::kAuto);
// Bytes of the cache that token number `tokens` of a text, counted from 1, reads: its own are among them
int64_t kv_cache_bytes_read(const ModelConfig& config, DType dtype, int64_t capacity, CacheDtype cache,
                            int64_t tokens);
// Bytes that one more token takes in a cache for `capacity` tokens, if it is still within every window;
// with a small cache once its group is codes
double kv_cache_bytes_of_token(const ModelConfig& config, DType dtype, int64_t capacity, CacheDtype cache);

// Help of --cache-dtype
inline constexpr const char* kCacheDtypes =
    "The cache of keys and values: auto (as the model computes), bf16, fp32, or all but the newest tokens as "
    "codes: fp8, int8, int4";
// What --cache-dtype means for computations in `dtype`: fp32 and bf16 become kAuto. Error: they are not
// `dtype`
CacheDtype checked_cache(CacheDtype cache, DType dtype);
// " in int4" of a small cache, else nothing
inline std::string cache_text(CacheDtype cache) {
  return is_small(cache) ? fmt::format(" in {}", name_of(cache)) : "";
}

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

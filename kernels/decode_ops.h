// The operations of a decode step, and of caches. The rules for all operations are in ops.h.
#pragma once

#include <optional>
#include <span>
#include <type_traits>
#include <variant>

#include "kernels/attention/decode.h"
#include "kernels/layer_ops.h"
#include "kernels/linear_ops.h"
#include "kernels/sampling.h"

namespace tessera {

// A linear layer of a decode step, with the norm before it and the activation and addition after it:
//   y = activation(norm(x) weight^T + bias) + add
// It computes what the operations of each_plain() compute one after another. With few rows a single pass is
// cheaper than several. norm(x) is rounded as there; the sums before the activation may stay unrounded.
struct FusedLinear {
  static constexpr const char* kName = "fused linear";
  enum class Epilogue : uint8_t { kNone, kGelu, kGeluExact, kRelu, kRelu2, kSwiglu };

  Tensor x, weight, y;      // [N, C] [O, C] [N, O]; with kSwiglu weight [2 O, C], gates first
  Tensor bias = {};         // [rows of weight]
  Tensor add = {};          // [N, O], may be y itself; without an activation
  Tensor norm_weight = {};  // [C]: x is normed, by RMSNorm
  Tensor norm_bias = {};    // [C], beside it: by LayerNorm
  float epsilon = 0;        // of the norm
  Epilogue activation = Epilogue::kNone;
  // Scratch for devices and sizes that take several passes: [N, C] [N] [N] if there is a norm, and [N, rows
  // of weight] if there is an activation
  Tensor normed = {}, mean = {}, rstd = {}, sums = {};

  void check_on(Device device) const;
  // Calls visit(op) with the operations that compute the same in several passes.
  template <class Visit>
  void each_plain(Visit&& visit) const;
};

// Writes the keys and values of T new tokens to the cache: token t of sequence b goes to row starts[b] + t.
// In a ring it goes to row (starts[b] + t) % capacity, in place of an older token.
struct CacheAppend {
  static constexpr const char* kName = "cache append";
  Heads k, v;               // K heads of [B, T, heads, D]
  Tensor starts;            // [B] int32; starts[b] + T is at most the capacity, unless it is a ring
  Tensor k_cache, v_cache;  // [B, capacity, K, D]
  bool ring = false;        // with T = 1
  // If queries choose blocks of `block` tokens: [B, K, capacity / block rounded up, D] fp32. The mean key of
  // each block that the new tokens complete is written there. None: queries do not choose
  Tensor means = {};
  int64_t block = 0;

  void check_on(Device device) const;
};

// Both operations in one: the rotated keys are the ones that are appended.
struct RotaryAppend {
  static constexpr const char* kName = "rotary and cache append";
  RotaryForward rotary;
  CacheAppend append;

  void check_on(Device device) const;
};

// Turns keys and values of whole groups of tokens into codes (kernels/attention/small_cache.h). If k and v
// have fewer rows than the text has tokens, they are rings: token t is in row t % rows. Without `starts`, the
// groups `first` to `first + count` - 1 of each sequence are turned into codes. With `starts`, the call comes
// before the token starts[b] is appended to a ring of kNewestTokens rows: if that token begins a group, the
// group whose rows it will overwrite becomes codes.
struct QuantiseCache {
  static constexpr const char* kName = "quantise cache";
  CacheFormat format;
  Tensor k, v;    // [L, B, rows, K, D], for L layers
  Tensor groups;  // [L, B, K, G, format.group_words()] int32
  int64_t first = 0, count = 0;
  Tensor starts = {};  // [B] int32

  void check_on(Device device) const;
};
// The reverse for one sequence: the numbers that the codes of its first `count` groups stand for
struct DequantiseCache {
  static constexpr const char* kName = "dequantise cache";
  CacheFormat format;
  Tensor groups;  // [K, G, format.group_words()] int32
  int64_t count;  // groups
  Tensor k, v;    // [rows, K, D]: token t to row t

  void check_on(Device device) const;
};

// Attention of one new token of each sequence, whose own keys and values are already in the cache. It sees
// the rows 0 to starts[b], in a ring at most all of its rows; with sparse blocks only the rows in blocks that
// the list of its own block has. An idle sequence has y = 0. With DecodeShape::one_cache the B tokens belong
// to one sequence, and the caches are [1, capacity, K, D].
struct DecodeAttention {
  static constexpr const char* kName = "decode attention";
  DecodePlan plan;
  Heads q;                  // H heads of [B, 1, heads, D]
  Tensor k_cache, v_cache;  // [B, capacity, K, D]; with a small cache rings [B, kNewestTokens, K, D]
  Tensor starts;            // [B] int32, each below the capacity, unless the cache is a ring
  Tensor y;                 // [B, 1, H, D]
  Tensor workspace = {};    // plan.workspace_bytes
  Tensor sinks = {};        // [H], if the plan has sinks, and only then
  Tensor blocks = {};       // as in MaskTables, if the plan has sparse blocks, and only then
  Tensor means = {};        // [B, K, DecodeShape::slots(), D] fp32, if queries choose blocks: see CacheAppend
  Tensor groups = {};       // [B, K, G, words] int32, for a small cache: see QuantiseCache

  void check_on(Device device) const;
};

// Attention of a decode step, from the heads of the new tokens on: q and k are normed, and rotated if
// positions are rotary; k and v go to the cache; and q reads the cache.
struct CachedAttention {
  Tensor heads;                         // [B, 1, H + 2 K, D]: q, k, v of the new tokens
  std::optional<RotaryForward> rotary;  // of q and k in `heads`
  CacheAppend append;
  DecodeAttention attention;

  void check_on(Device device) const;
  // Calls visit(op) with the operations that compute it: RotaryAppend or CacheAppend, and DecodeAttention.
  template <class Visit>
  void each_plain(Visit&& visit) const;
};

// An operation of a decode step. The operations whose results it reads are named by their numbers in the
// step, so that a device need not find out which operation wrote a tensor.
struct DecodeOp {
  static constexpr int kNone = -1;
  std::variant<EmbeddingForward, FusedLinear, LinearForward, CachedAttention> op;
  int x = kNone, add = kNone;  // the operations whose y is this one's x, and its add
  int buffer = 0;              // operations with the same number have the same y, which each overwrites

  // Calls visit(op) with the operations of AnyOp that compute it.
  template <class Visit>
  void each_plain(Visit&& visit) const;
};

// The operations of a decode step, one after another: an embedding, then linear layers and attention, at last
// a linear layer. A device that computes all of them in one kernel writes only the caches and the y of the
// last operation; the other tensors then keep their old contents.
struct FusedDecodeStep {
  static constexpr const char* kName = "decode step";
  std::span<const DecodeOp> operations;
  // decode_step_bytes() (backend.h) bytes, zeros before the first run; each run leaves there what the next
  // one needs. None: the operations run one by one
  Tensor memory = {};

  void check_on(Device device) const;
};

// Draws the next token of each sequence from the softmax of its logits, as `rule` says (kernels/sampling.h),
// and counts it in `seen`, `draws` and `starts`. A draw depends on the seed, the sequence's number and the
// number of its earlier draws, not on other sequences (kernels/token_draw.h has the arithmetic). An idle
// sequence draws kIdleToken. A sequence with a NaN among its logits draws kBadLogits and becomes idle.
// Neither of these is counted.
struct SampleTokens {
  static constexpr const char* kName = "sample tokens";
  Tensor logits;  // [B, padded V]
  int64_t vocab_size;
  SamplingRule rule;
  uint64_t seed;
  Tensor seen;    // [B, (V + 31) / 32] int32, added to. Bit t % 32 of word t / 32: token t occurs in the text
  Tensor draws;   // [B, 2] int32: the sequence's number, and its number of draws so far, which grows by one
  Tensor starts;  // [B] int32: grows by one, as the drawn token is the next to be read
  Tensor tokens;  // [B] int32, out

  void check_on(Device device) const;
};

template <class Visit>
void FusedLinear::each_plain(Visit&& visit) const {
  if (norm_bias) {
    visit(LayerNormForward{.x = x,
                           .weight = norm_weight,
                           .bias = norm_bias,
                           .y = normed,
                           .mean = mean,
                           .rstd = rstd,
                           .epsilon = epsilon});
  } else if (norm_weight) {
    visit(RmsNormForward{.x = x, .weight = norm_weight, .y = normed, .rstd = rstd, .epsilon = epsilon});
  }
  LinearForward linear{.x = norm_weight ? normed : x, .weight = weight, .y = y, .bias = bias, .add = add};
  switch (activation) {
    case Epilogue::kNone:
      return visit(linear);
    case Epilogue::kSwiglu:
      linear.y = sums;
      visit(linear);
      return visit(GatedForward{.gate_up = sums, .y = y});
    case Epilogue::kGelu:
      linear.activation = Activation::kGelu;
      break;
    case Epilogue::kGeluExact:
      linear.activation = Activation::kGeluExact;
      break;
    case Epilogue::kRelu:
      linear.activation = Activation::kRelu;
      break;
    case Epilogue::kRelu2:
      linear.activation = Activation::kRelu2;
      break;
  }
  linear.pre_activation = sums;
  visit(linear);
}

template <class Visit>
void CachedAttention::each_plain(Visit&& visit) const {
  if (rotary)
    visit(RotaryAppend{*rotary, append});
  else
    visit(append);
  visit(attention);
}

template <class Visit>
void DecodeOp::each_plain(Visit&& visit) const {
  if (const auto* cached = std::get_if<CachedAttention>(&op)) return cached->each_plain(visit);
  std::visit(
      [&](const auto& one) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(one)>, CachedAttention>) visit(one);
      },
      op);
}

}  // namespace tessera

// Mixture of blocks (AttnChoice of attention.h): the block of a token, and the blocks that a query may
// choose, for the CPU and for GPUs.
//
// A block is named by its first key. A block that a query may choose has `size` keys, all of them before the
// query. Such blocks do not overlap, so at most one of them begins in each interval of `size` keys from a
// multiple of `size` on. These intervals are called slots: a block that begins at key p is in slot p / size.
// The blocks that one query may choose are in successive slots.
#pragma once

#include "kernels/attention/mask.h"

namespace tessera::attention {

inline constexpr int kMostChosen = 32;          // blocks that a query sees
inline constexpr int kLargestChoice = 1 << 16;  // tokens of a block

// Whether an AttnChoice may have this size and count
constexpr bool is_choice(int64_t size, int64_t count) {
  return size >= 1 && size <= kLargestChoice && (size & (size - 1)) == 0 && count >= 1 &&
         count <= kMostChosen;
}

struct Choice {
  int size = 0;    // 0: none
  int others = 0;  // blocks that a query chooses beside its own

  TESSERA_HOST_DEVICE explicit operator bool() const { return size > 0; }
  // The keys that a query sees in its own block; empty if it sees no key
  TESSERA_HOST_DEVICE Span own(const Mask& mask, int query) const {
    const Span keys = mask.keys_of(query);
    return {keys.begin + candidates(keys) * size, keys.end};
  }
  // A query that sees `keys` may choose candidates(keys) blocks, in the slots from first_slot(keys) on.
  TESSERA_HOST_DEVICE int candidates(Span keys) const { return keys.empty() ? 0 : (keys.size() - 1) / size; }
  TESSERA_HOST_DEVICE int first_slot(Span keys) const { return keys.begin / size; }
  // The number of keys that a query sees
  TESSERA_HOST_DEVICE int64_t visible(const Mask& mask, int query) const {
    const int behind = candidates(mask.keys_of(query));
    return own(mask, query).size() + int64_t{behind < others ? behind : others} * size;
  }
  TESSERA_HOST_DEVICE int slots(int keys) const { return (keys + size - 1) / size; }

  // The block of a key, up to the last of its keys that any query sees
  struct Block {
    Span keys;       // keys.begin is -1 if no query sees the key
    bool choosable;  // whether a query may choose it: some query stands after the whole block
  };
  TESSERA_HOST_DEVICE Block block_of(const Mask& mask, int key) const {
    const Span seeing = mask.queries_of(key);
    if (seeing.empty()) return {{-1, -1}, false};
    const Span keys = mask.keys_of(seeing.end - 1);
    const int begin = keys.begin + (key - keys.begin) / size * size;
    const bool choosable = keys.end - begin > size;
    return {{begin, choosable ? begin + size : keys.end}, choosable};
  }
  // The queries whose own block is the one that begins at key `begin`
  TESSERA_HOST_DEVICE Span owners(const Mask& mask, const Block& block) const {
    const Span seeing = mask.queries_of(block.keys.begin);
    return {seeing.begin, block.choosable ? mask.queries_of(block.keys.end).begin : seeing.end};
  }
};

inline Choice choice_of(const AttnProblem& p) {
  const AttnChoice& c = p.mask.choice;
  return c.size == 0 ? Choice{} : Choice{.size = c.size, .others = c.count - 1};
}

// The chosen blocks of each row of [batch, heads, queries]: the first keys of up to `others` blocks, rising;
// the remaining entries are -1.
struct Chosen {
  Choice choice;
  const int32_t* first_keys = nullptr;

  TESSERA_HOST_DEVICE explicit operator bool() const { return first_keys != nullptr; }
  TESSERA_HOST_DEVICE const int32_t* of_row(int64_t row) const { return first_keys + row * choice.others; }
  // Whether a row whose own block is `own` sees a key
  TESSERA_HOST_DEVICE bool sees(int64_t row, Span own, int key) const {
    if (own.contains(key)) return true;
    const int32_t* chosen = of_row(row);
    for (int i = 0; i < choice.others && chosen[i] >= 0 && chosen[i] <= key; ++i)
      if (key < chosen[i] + choice.size) return true;
    return false;
  }
};

}  // namespace tessera::attention

// Says which query tiles a CTA takes, and in which order. For plain masks this is static, so that the forward
// needs no counter in memory.
//
// The rows of a head are cut into slices, one for each warpgroup of a tile, and a head has as few query tiles
// as hold its slices. If the slices do not fill the tiles, the first tiles have one slice less. An item is a
// query tile of one head of one batch.
//
// Full masks: the tiles of a head follow each other, so that the CTAs of a round share its keys in L2. A CTA
// moves by one place each round; otherwise it could get the short tile of every head.
//
// Causal masks: sections follow one another, each with as many heads as stay in L2. Within a section the
// longest tiles come first, and the heads vary fastest. Every other round goes backwards, so that no CTA gets
// the longest tile of every round. The last round of a section may be partial; the CTAs without an item in it
// come first in the next section.
//
// Any other mask: sections as well, with the tiles in the order of forward_spans.cuh. The lengths of tiles
// are not known in advance, so CTAs take tickets.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention/common/view.h"

namespace tessera::attention::sm90 {

// Division by a number that the host knows: the quotient of n < 2^31 is (high half of n multiplier + n) >>
// shift (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994).
struct Divisor {
  uint32_t divisor, multiplier, shift;

  explicit Divisor(int64_t d) : divisor(static_cast<uint32_t>(d)), shift(0) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  TESSERA_HOST_DEVICE int divide(int n) const {
    const auto high = static_cast<uint32_t>(uint64_t{static_cast<uint32_t>(n)} * multiplier >> 32);
    return static_cast<int>((high + static_cast<uint32_t>(n)) >> shift);
  }
  // The quotient; n becomes the remainder
  TESSERA_HOST_DEVICE int split(int& n) const {
    const int quotient = divide(n);
    n -= quotient * static_cast<int>(divisor);
    return quotient;
  }
};

struct QueryTile {
  int first_slice, last_slice;  // [first, last)
  int head, kv_head, batch;
};

class ForwardSchedule {
 public:
  ForwardSchedule(const AttnProblem& p, int slice_rows, int slices_a_tile, int ctas)
      : ForwardSchedule(p, (p.tokens + slice_rows - 1) / slice_rows, int64_t{slices_a_tile}, ctas) {}

  // A schedule whose tiles begin at multiples of slices_a_tile: the last slice may lie past the end
  static ForwardSchedule of_whole_tiles(const AttnProblem& p, int slice_rows, int slices_a_tile, int ctas) {
    const int64_t tile_rows = int64_t{slice_rows} * slices_a_tile,
                  tiles = (p.tokens + tile_rows - 1) / tile_rows;
    return ForwardSchedule(p, tiles * slices_a_tile, int64_t{slices_a_tile}, ctas);
  }

  TESSERA_HOST_DEVICE int items() const { return items_; }
  TESSERA_HOST_DEVICE int heads() const { return static_cast<int>(heads_.divisor); }

  // The position of a CTA in its walk over the items
  struct Walk {
    int before, place, round;  // items of the sections before; the CTA's place in a round of this one
  };
  TESSERA_HOST_DEVICE Walk begin(int cta) const { return {0, cta, 0}; }
  // The next item of a CTA, or -1 after its last
  template <bool kCausal>
  TESSERA_HOST_DEVICE int next(Walk& at, int ctas) const {
    if (!kCausal) {
      const int64_t item = int64_t{at.round++} * ctas + at.place;
      if (++at.place == ctas) at.place = 0;
      return item < items_ ? static_cast<int>(item) : -1;
    }
    const int whole = static_cast<int>(section_items_.divisor);
    for (; at.before < items_; at.before += whole) {
      const int here = items_ - at.before < whole ? items_ - at.before : whole;
      const int item = at.round * ctas + (at.round % 2 ? ctas - 1 - at.place : at.place);
      ++at.round;
      if (item < here) return at.before + item;
      at.round = 0;
      at.place -= here % ctas;
      if (at.place < 0) at.place += ctas;
    }
    return -1;
  }

  template <bool kCausal>
  TESSERA_HOST_DEVICE QueryTile tile(int item) const {
    int tile, head;
    if (kCausal) {
      const int before = section_items_.split(item) * section_;
      const Divisor& here = before + section_ <= all_heads_ ? section_heads_ : last_heads_;
      tile = tiles() - 1 - here.split(item);
      head = before + item;
    } else {
      head = tiles_.split(item);
      tile = item;
    }
    return query_tile(tile, head);
  }
  // The tile of an item with any mask: like tile<true>(), but the order of the tiles of a sequence is read.
  TESSERA_HOST_DEVICE QueryTile tile_in_order(int item, const int32_t* order) const {
    const int before = section_items_.split(item) * section_;
    const Divisor& here = before + section_ <= all_heads_ ? section_heads_ : last_heads_;
    const int place = here.split(item), head = before + item;
    return query_tile(order[heads_.divide(head) * tiles() + place], head);
  }
  // The same if the heads of a list share an order. list_heads: the number of such heads, over all batches
  TESSERA_HOST_DEVICE QueryTile tile_in_order(int item, const int32_t* order,
                                              const Divisor& list_heads) const {
    const int before = section_items_.split(item) * section_;
    const Divisor& here = before + section_ <= all_heads_ ? section_heads_ : last_heads_;
    const int place = here.split(item), head = before + item;
    return query_tile(order[list_heads.divide(head) * tiles() + place], head);
  }
  TESSERA_HOST_DEVICE int slices() const { return tiles() * slices_a_tile_ - short_tiles_; }  // of a head
  TESSERA_HOST_DEVICE int tiles() const { return static_cast<int>(tiles_.divisor); }          // of a head
  // The slices of a tile: [first_slice(tile), first_slice(tile + 1))
  TESSERA_HOST_DEVICE int first_slice(int tile) const {
    return tile * slices_a_tile_ - (tile < short_tiles_ ? tile : short_tiles_);
  }

 private:
  TESSERA_HOST_DEVICE QueryTile query_tile(int tile, int head) const {
    const int batch = heads_.split(head);
    return {.first_slice = first_slice(tile),
            .last_slice = first_slice(tile + 1),
            .head = head,
            .kv_head = queries_a_key_.divide(head),
            .batch = batch};
  }

  // The bytes of keys and values of a section: they stay in L2 (50 MB or more), beside queries and outputs.
  static constexpr int64_t kSectionBytes = int64_t{32} << 20;
  // The same if the section has two rounds: with one round, the same CTAs would get the longest tiles of
  // every section.
  static constexpr int64_t kMostSectionBytes = int64_t{36} << 20;

  ForwardSchedule(const AttnProblem& p, int64_t slices, int64_t most_a_tile, int ctas)
      : slices_a_tile_(static_cast<int>(std::min(most_a_tile, slices))),
        tiles_((slices + slices_a_tile_ - 1) / slices_a_tile_),
        heads_(p.heads),
        queries_a_key_(p.heads / p.kv_heads),
        section_(section_size(p, tiles_.divisor, ctas)),
        section_items_(int64_t{section_} * tiles_.divisor),
        section_heads_(section_),
        last_heads_(std::max<int64_t>(p.batch * p.heads % section_, 1)) {
    all_heads_ = static_cast<int>(p.batch * p.heads);
    items_ = static_cast<int>(tiles_.divisor) * all_heads_;
    short_tiles_ = static_cast<int>(int64_t{tiles_.divisor} * slices_a_tile_ - slices);
  }

  // The number of heads of a section: an even number of whole rounds if that fits, else what fits
  static int section_size(const AttnProblem& p, int64_t tiles, int ctas) {
    const int64_t bytes =
        p.kv_tokens * p.head_dim * 2 * 2 * p.kv_heads / p.heads;  // of a head, K and V in bf16
    const int64_t fit = kSectionBytes / (bytes + 1), fit_tightly = kMostSectionBytes / (bytes + 1);
    int64_t heads = fit;
    for (int rounds : {2, 4}) {
      const int64_t level = rounds * ctas / tiles;
      if (level > 0 && level <= (rounds == 2 ? fit_tightly : fit)) heads = level;
    }
    return static_cast<int>(std::clamp<int64_t>(heads, 1, p.batch * p.heads));
  }

  int slices_a_tile_, short_tiles_, items_;
  Divisor tiles_, heads_, queries_a_key_;  // tiles of a head, heads of a batch, query heads of a key head
  int all_heads_, section_;                // heads of all batches, and of a section
  Divisor section_items_, section_heads_, last_heads_;  // last: heads of a section that is not whole
};

}  // namespace tessera::attention::sm90

// The workspaces of the sm_90 kernels. Plain C++.
#pragma once

#include <algorithm>

#include "kernels/attention/mask.h"
#include "kernels/attention/sm90/shape.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::sm90 {

// What the rows of a slice see, for a mask that is neither plain causal nor full
struct alignas(16) SliceKeys {
  Span tiles;  // key tiles: at least one, so that a row that sees nothing gets its results like any other
  Span whole;  // the keys that all of these rows see
};

// For the key blocks of a sequence, in the backward of a mask that is not plain: the sum, over the blocks, of
// the number of query tiles that a block meets, and the sum of their squares
struct BlockTiles {
  uint64_t sum, squares;
};

// A work tile of the backward of sparse blocks: a query head's tiles at these places of the list of a key
// block, which it has alone or as one of several parts. See backward_listed.cuh.
struct alignas(16) ListedWork {
  int32_t key_block, kv_head, batch, head;  // key block -1: there is no work
  Span tiles;
  int32_t first_part;   // of the key block, among those of the query head
  int16_t part, parts;  // its own; of the key block
};

inline bool has_spans(const AttnProblem& p) { return p.mask.blocks.size > 0 || !mask_of(p).plain(); }

// Only for masks that are not plain, and for sparse blocks: see forward_spans.cuh and forward_listed.cuh.
struct ForwardWorkspace {
  static int slices_of_tile(const AttnProblem& p) {
    if (p.mask.blocks.size > 0) return ListedForwardTile<64>::kConsumers;
    return p.head_dim <= 128 ? ForwardTileBase::kConsumers : ForwardTile<256>::kConsumers;
  }

  ForwardWorkspace(void* memory, const AttnProblem& p) : ForwardWorkspace(memory, p, slices_of_tile(p)) {}
  ForwardWorkspace(void* memory, const AttnProblem& p, int64_t of_tile) {
    Carver carver(memory);
    if (has_spans(p)) {
      constexpr int kSlice = kWarpgroupRows;
      const int64_t tiles = (p.tokens + kSlice * of_tile - 1) / (kSlice * of_tile),
                    lists = p.mask.blocks.size > 0 ? p.mask.blocks.lists : 1,
                    slices = p.mask.blocks.size > 0 ? tiles * of_tile : (p.tokens + kSlice - 1) / kSlice;
      ticket = carver.take<uint32_t>(1);
      lengths = carver.take<int32_t>(static_cast<size_t>(p.batch * lists * tiles));
      order = carver.take<int32_t>(static_cast<size_t>(p.batch * lists * tiles));
      slices_keys = carver.take<SliceKeys>(static_cast<size_t>(p.batch * lists * slices));
      rows_keys = carver.take<Span>(static_cast<size_t>(p.batch * slices * kSlice));
    }
    bytes = carver.used();
  }

  uint32_t* ticket = nullptr;  // the next
  // [B, query tile], with sparse blocks [B, list, query tile]: key tiles that it sees
  int32_t* lengths = nullptr;
  int32_t* order = nullptr;          // likewise: the tiles as they are taken
  SliceKeys* slices_keys = nullptr;  // [B, slice], with sparse blocks [B, list, slice]
  Span* rows_keys = nullptr;         // [B, slices, 64]: the keys that a row sees
  size_t bytes;
};

// Rows are padded to whole query tiles, so that TMA can bring row statistics without checking where N ends.
struct BackwardWorkspace {
  static constexpr int kRowPadding = BackwardShape<64>::kBlockQ;  // the largest kBlockQ
  static_assert(kRowPadding % BackwardShape<128>::kBlockQ == 0);
  // A tile of dQ has this many parts, each computed by one warpgroup and with its own counter.
  static constexpr int kPartsPerTile = BackwardShape<64>::kGroups;
  static_assert(kPartsPerTile == BackwardShape<128>::kGroups);
  static constexpr int kBlockK = BackwardShape<64>::kBlockK;
  static_assert(kBlockK == BackwardShape<128>::kBlockK);

  static int query_tile_of(const AttnProblem& p) {  // kBlockQ
    return p.head_dim <= 64 ? BackwardShape<64>::kBlockQ : BackwardShape<128>::kBlockQ;
  }
  static int64_t key_blocks_of(const AttnProblem& p) { return (p.kv_tokens + kBlockK - 1) / kBlockK; }

  // With sparse blocks, of a query head: parts of key blocks that have several, and work tiles, at most. Sums
  // of so many parts take an eighth of the bytes of `dq`.
  static int64_t listed_parts_of(const AttnProblem& p) {
    return p.mask.blocks.size > 0 ? key_blocks_of(p) / 16 : 0;
  }
  static int64_t most_listed_work(const AttnProblem& p) { return key_blocks_of(p) + listed_parts_of(p); }

  // The mean number of query tiles that a block of keys meets in a head, for a causal mask without documents
  static double steps_of_head(const AttnProblem& p) {
    const auto tokens = static_cast<double>(p.tokens),
               window = p.mask.window > 0 ? std::min(static_cast<double>(p.mask.window), tokens) : tokens;
    const double queries = window - window * window / (2 * tokens);  // that see a key
    return (queries + kBlockK / 2) / query_tile_of(p);
  }

  // The number of query heads that a CTA takes with a block of keys: a divisor of the heads that share it.
  // With more heads, fewer sums of dK and dV pass through memory, each of which takes as long as one or two
  // steps. With fewer heads, work tiles are shorter, so that CTAs end at about the same time and wait less
  // for each other's dQ. Measured: docs/attention_results.md.
  static int heads_per_work_tile(const AttnProblem& p) {
    // Work tiles that fill an H100 or H200, and so many that the last ones matter little
    constexpr int64_t kMultiprocessors = 132, kFew = kMultiprocessors * 2 / 3, kMany = 16 * kMultiprocessors;
    if (p.mask.blocks.size > 0) return 1;  // so that a block that all queries see takes no longer than a head
    const int64_t all = p.heads / p.kv_heads, work_tiles_of_all = p.batch * p.kv_heads * key_blocks_of(p);
    const double steps = steps_of_head(p);
    int64_t heads = all;
    if (p.mask.documents != nullptr) {
      heads = p.head_dim <= 64 && all % 2 == 0 ? 2 : 1;
    } else if (!mask_of(p).plain()) {
      constexpr double kMostSteps = 24;
      if (steps > kMostSteps) heads = 1;
    } else if (p.mask.causal && work_tiles_of_all < kMany) {
      constexpr double kBestSteps = 16;
      const auto off = [&](int64_t n) {  // too long costs more than too short
        const double ratio = static_cast<double>(n) * steps / kBestSteps;
        return ratio < 1 ? 1 / ratio : ratio * ratio;
      };
      for (int64_t n = all; n > 0; --n)
        if (all % n == 0 && off(n) < off(heads)) heads = n;
    }
    while (heads > 1 && (all % heads != 0 || work_tiles_of_all * all < kFew * heads)) --heads;
    return static_cast<int>(heads);
  }

  BackwardWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    const int64_t padded_tokens = (p.tokens + kRowPadding - 1) / kRowPadding * kRowPadding;
    const auto rows = static_cast<size_t>(p.batch * p.heads * padded_tokens);
    const int64_t tiles = padded_tokens / query_tile_of(p), blocks = key_blocks_of(p);
    row_statistics = carver.take<float>(rows * 2);
    dq = carver.take<float>(rows * static_cast<size_t>(tile_width(p.head_dim)));
    const auto part_counters = static_cast<size_t>(p.batch * p.heads * tiles * kPartsPerTile);
    const bool shared = heads_per_work_tile(p) < p.heads / p.kv_heads;
    const size_t shared_parts =
        shared ? static_cast<size_t>(p.batch * p.kv_heads * blocks * BackwardShape<64>::kGroups) : 0;
    const auto listed_parts = static_cast<size_t>(p.batch * p.heads * listed_parts_of(p));
    counter_count = static_cast<uint32_t>(1 + part_counters + shared_parts + listed_parts);
    counters = carver.take<uint32_t>(counter_count);
    const auto floats = static_cast<size_t>(2 * kWarpgroupRows * tile_width(p.head_dim));
    if (shared) {
      key_counters = counters ? counters + 1 + part_counters : nullptr;
      key_sums = carver.take<float>(shared_parts * floats);
    }
    if (listed_parts > 0) {
      listed_counters = counters ? counters + 1 + part_counters + shared_parts : nullptr;
      listed_sums = carver.take<float>(listed_parts * BackwardShape<64>::kGroups * floats);
    }
    if (has_spans(p)) {
      const int64_t lists = p.mask.blocks.size > 0 ? p.mask.blocks.lists : 1;
      blocks_of_tiles = carver.take<Span>(static_cast<size_t>(p.batch * tiles));
      tiles_of_blocks = carver.take<Span>(static_cast<size_t>(p.batch * lists * blocks));
      if (p.mask.blocks.size > 0) {
        places_of_tiles = carver.take<Span>(static_cast<size_t>(p.batch * lists * tiles));
        listed_work = carver.take<ListedWork>(static_cast<size_t>(p.batch * p.heads * most_listed_work(p)));
      }
      block_tiles = carver.take<BlockTiles>(static_cast<size_t>(p.batch));
    }
    bytes = carver.used();
  }

  float* row_statistics;  // [B, H, query tile, 2, kBlockQ]: LSE log2(e), +inf past N, where the probabilities
                          // thus become 0; and delta = rowsum(dO o O), 0 past N
  float* dq;              // [B, H, query tile, part, 64 x 64]: sums in the order of a warpgroup's registers
  uint32_t* counters;     // [0]: the next ticket; [1 + 2 tile + part]: key blocks that have added to it
  uint32_t counter_count;  // including key_counters and listed_counters, which follow them
  // Where a work tile has not all heads. [B, K, key block, warpgroup]: query heads that have added to dK
  // and dV; [..., 2, D / 8, 128] of four floats: sums in the order of a warpgroup's registers
  uint32_t* key_counters = nullptr;
  float* key_sums = nullptr;
  // For a mask that is not plain. [B, query tile]: the key blocks that add to its dQ; [B, key block]: the
  // query tiles that it meets; [B]: how many these are. See backward_spans.cuh.
  Span *blocks_of_tiles = nullptr, *tiles_of_blocks = nullptr;
  BlockTiles* block_tiles = nullptr;
  // For sparse blocks: see backward_listed.cuh. tiles_of_blocks is [B, list, key block], of places.
  Span* places_of_tiles = nullptr;    // [B, list, query tile]: of the key blocks that add to its dQ
  ListedWork* listed_work = nullptr;  // [ticket], most_listed_work() for each query head
  // [B, H, part]: parts of the key block that begins here that have ended; [..., warpgroup, 2, D / 8, 128] of
  // four floats: dK and dV of a part, in the order of a warpgroup's registers
  uint32_t* listed_counters = nullptr;
  float* listed_sums = nullptr;
  size_t bytes;
};

// The workspace of the backward of heads with more than 128 columns: see wide_args.cuh.
struct WideWorkspace {
  static constexpr int kRowPadding = 64;  // of a tile

  WideWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    const int64_t padded_tokens = (p.tokens + kRowPadding - 1) / kRowPadding * kRowPadding;
    row_statistics = carver.take<float>(static_cast<size_t>(p.batch * p.heads * padded_tokens * 2));
    bytes = carver.used();
  }

  float* row_statistics;  // as in BackwardWorkspace
  size_t bytes;
};

}  // namespace tessera::attention::sm90

// The workspaces of the sm_90 kernels. Plain C++.
#pragma once

#include "kernels/attention/mask.h"
#include "kernels/attention/sm90/shape.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::sm90 {

// What the rows of a slice see, of a mask that is not plain
struct alignas(16) SliceKeys {
  Span tiles;  // key tiles: at least one, so that a row that sees nothing gets its results as any other
  Span whole;  // keys that all of them see
};

// Of a mask that is not plain: see forward_spans.cuh.
struct ForwardWorkspace {
  ForwardWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    if (!mask_of(p).plain()) {
      constexpr int kSlice = kWarpgroupRows, kSlices = ForwardTileBase::kConsumers;
      const int64_t slices = (p.tokens + kSlice - 1) / kSlice, tiles = (slices + kSlices - 1) / kSlices;
      ticket = carver.take<uint32_t>(1);
      lengths = carver.take<int32_t>(static_cast<size_t>(p.batch * tiles));
      order = carver.take<int32_t>(static_cast<size_t>(p.batch * tiles));
      slices_keys = carver.take<SliceKeys>(static_cast<size_t>(p.batch * slices));
      rows_keys = carver.take<Span>(static_cast<size_t>(p.batch * slices * kSlice));
    }
    bytes = carver.used();
  }

  uint32_t* ticket = nullptr;        // the next
  int32_t* lengths = nullptr;        // [B, query tile]: key tiles that it sees
  int32_t* order = nullptr;          // [B, query tile]: the tiles as they are taken
  SliceKeys* slices_keys = nullptr;  // [B, slice]
  Span* rows_keys = nullptr;         // [B, slices, 64]: the keys that a row sees
  size_t bytes;
};

// Rows are padded to whole query tiles: the copy engine brings row statistics without asking where N ends.
struct BackwardWorkspace {
  static constexpr int kRowPadding = BackwardShape<64>::kBlockQ;  // the largest kBlockQ
  static constexpr int kSmallestBlockQ = BackwardShape<128>::kBlockQ;
  static_assert(kRowPadding % kSmallestBlockQ == 0);
  // Each of one warpgroup, with its own counter
  static constexpr int kPartsPerTile = BackwardShape<64>::kGroups;
  static_assert(kPartsPerTile == BackwardShape<128>::kGroups);

  BackwardWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    const int64_t padded_tokens = (p.tokens + kRowPadding - 1) / kRowPadding * kRowPadding;
    const auto rows = static_cast<size_t>(p.batch * p.heads * padded_tokens);
    row_statistics = carver.take<float>(rows * 2);
    dq = carver.take<float>(rows * static_cast<size_t>(tile_width(p.head_dim)));
    counters = carver.take<uint32_t>(rows / kSmallestBlockQ * kPartsPerTile + 1);
    if (!mask_of(p).plain()) {
      constexpr int kBlockK = BackwardShape<64>::kBlockK;
      static_assert(kBlockK == BackwardShape<128>::kBlockK);
      const int64_t blocks = (p.kv_tokens + kBlockK - 1) / kBlockK;
      blocks_of_tiles = carver.take<Span>(static_cast<size_t>(p.batch * (padded_tokens / kSmallestBlockQ)));
      tiles_of_blocks = carver.take<Span>(static_cast<size_t>(p.batch * blocks));
    }
    bytes = carver.used();
  }

  float* row_statistics;  // [B, H, query tile, 2, kBlockQ]: LSE log2(e), +inf past N, where the probabilities
                          // thus become 0; and delta = rowsum(dO o O), 0 past N
  float* dq;              // [B, H, query tile, part, 64 x 64]: sums in the order of a warpgroup's registers
  uint32_t* counters;     // [0]: the next ticket; [1 + 2 tile + part]: key blocks that have added to it
  // Of a mask that is not plain. [B, query tile]: the key blocks that add to its dQ; [B, key block]: the
  // query tiles that it meets. See backward_spans.cuh.
  Span *blocks_of_tiles = nullptr, *tiles_of_blocks = nullptr;
  size_t bytes;
};

}  // namespace tessera::attention::sm90

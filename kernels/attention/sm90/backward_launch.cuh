// The backward as two launches: row statistics, and the main kernel; with any mask one between them, which
// finds who meets whom. There is one mode, whatever AttnBackward::deterministic says: the fixed order of
// additions costs a few percent of waiting at most, and spares zeroing dQ and a last pass over it.
#pragma once

#include <algorithm>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/backward.cuh"
#include "kernels/attention/sm90/backward_listed.cuh"
#include "kernels/attention/sm90/backward_rows.cuh"
#include "kernels/attention/sm90/backward_spans.cuh"
#include "kernels/attention/sm90/workspace.h"
#include "kernels/hopper/tensor_map.h"

namespace tessera::attention::sm90 {

inline AttnStatus multiprocessors(int* count) {
  int device;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return ATTN_LAUNCH_FAILED;
  }
  return ATTN_OK;
}

template <class Shape>
AttnStatus make_tensor_maps(BackwardArgs* args, const AttnBackward& f) {
  const AttnProblem& p = f.problem;
  struct {
    CUtensorMap* map;
    const AttnTensor* tensor;
    int64_t heads;
    int64_t tokens;
    int rows;
  } const maps[] = {{&args->q, &f.q, p.heads, p.tokens, Shape::kBlockQ},
                    {&args->dout, &f.dout, p.heads, p.tokens, Shape::kBlockQ},
                    {&args->k, &f.k, p.kv_heads, p.kv_tokens, Shape::kBlockK},
                    {&args->v, &f.v, p.kv_heads, p.kv_tokens, Shape::kBlockK},
                    {&args->dk, &f.dk, p.kv_heads, p.kv_tokens, kWarpgroupRows},
                    {&args->dv, &f.dv, p.kv_heads, p.kv_tokens, kWarpgroupRows}};
  for (const auto& m : maps) {
    if (!make_tensor_map(*m.map, HeadBoxes{.tensor = view<void>(*m.tensor),
                                           .batch = p.batch,
                                           .tokens = m.tokens,
                                           .heads = m.heads,
                                           .box = box_of(p.head_dim, Shape::kHeadDim, m.rows)}))
      return ATTN_LAUNCH_FAILED;
  }
  for (int d = 0; d < Shape::kHeadDim; d += Shape::kPart) {
    AttnTensor part = f.dq;
    part.data = static_cast<bf16*>(f.dq.data) + d;
    const Box box = {.columns = std::min(Shape::kPart, p.head_dim - d), .panels = 1, .rows = Shape::kPart};
    if (!make_tensor_map(args->dq[d / Shape::kPart], HeadBoxes{.tensor = view<void>(part),
                                                               .batch = p.batch,
                                                               .tokens = p.tokens,
                                                               .heads = p.heads,
                                                               .box = box}))
      return ATTN_LAUNCH_FAILED;
  }
  return ATTN_OK;
}

// Groups of a causal problem whose tickets go downwards: see backward_work_tile.cuh. Those that go upwards
// are two and a half work tiles for each multiprocessor (measured). But the very first work tiles go
// downwards: they begin at once, and upwards they would wait for each other.
inline int descending_groups_of(int groups, int key_blocks, int sms) {
  const int begin_at_once = (sms + key_blocks / 2) / key_blocks,
            ascending = (5 * sms + 2 * key_blocks - 1) / (2 * key_blocks);
  return std::min(groups, std::max(begin_at_once, groups - ascending));
}

// Whether a key is seen by fewer queries the later it is in its document
inline bool falls(const AttnMask& mask) { return mask.causal != 0 || mask.seen_by != nullptr; }

// Long sequences may go in waves of as many key blocks as there are CTAs: see backward_work_tile.cuh.
inline int wave_blocks_of(const AttnMask& mask, int key_blocks, int sms) {
  return falls(mask) && mask.window == 0 && key_blocks >= sms ? sms : 0;
}

template <class Shape>
BackwardArgsOf<Shape> with_lists(const BackwardArgs& args, const AttnProblem& p) {
  if constexpr (Shape::kListed) {
    const Blocks blocks = blocks_of(p);
    ListedBackwardArgs listed{args};
    listed.blocks = blocks;
    listed.key_shift = blocks.shift_of(Shape::kBlockK), listed.query_shift = blocks.shift_of(Shape::kBlockQ);
    listed.tiles_before = static_cast<int>(p.mask.offset) / Shape::kBlockQ;
    return listed;  // find_listed_tiles() sets the rest
  } else {
    return args;
  }
}

template <class Shape>
AttnStatus launch_backward(const AttnBackward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const BackwardWorkspace workspace(f.workspace, p);
  static_assert(BackwardWorkspace::kRowPadding % Shape::kBlockQ == 0);
  const auto tokens = static_cast<int>(p.tokens), kv_tokens = static_cast<int>(p.kv_tokens);
  const int query_tiles = (tokens + Shape::kBlockQ - 1) / Shape::kBlockQ,
            key_blocks = static_cast<int>(BackwardWorkspace::key_blocks_of(p));
  const auto heads = static_cast<int>(p.batch * p.heads);
  const int heads_per_work_tile = BackwardWorkspace::heads_per_work_tile(p),
            groups = heads / heads_per_work_tile;

  const BackwardRowsArgs rows = {
      .out = view<const bf16>(f.out),
      .dout = view<const bf16>(f.dout),
      .lse = f.lse,
      .row_statistics = workspace.row_statistics,
      .counters = workspace.counters,
      .counter_count = workspace.counter_count,
      .batch = static_cast<int>(p.batch),
      .tokens = tokens,
      .query_tiles = query_tiles,
      .heads = static_cast<int>(p.heads),
      .head_dim = p.head_dim,
      .delta_scale = 1 / dropout_of(p).scale(),
  };
  AttnStatus status;
  if constexpr (Shape::Score::kBiased)
    status = launch_row_statistics<Shape>(f, AlibiRowsArgs{rows, alibi_of(p)}, stream);
  else
    status = launch_row_statistics<Shape>(f, rows, stream);
  if (status != ATTN_OK) return status;

  int sms;
  status = multiprocessors(&sms);
  if (status != ATTN_OK) return status;
  // Without a mask neighbouring key blocks should start a little more than a step apart: see WorkTile.
  const int apart = (3 * sms / 2 + query_tiles - 1) / query_tiles;
  // Within documents or a window CTAs that work at a time read few rows of a head each: neighbouring heads
  // together read longer pieces of them. Measured.
  constexpr int kRowElements = 256;
  const int descending_groups =
      p.mask.causal && !Shape::kAnyMask ? descending_groups_of(groups, key_blocks, sms) : groups;
  const auto all_kv_heads = static_cast<int>(p.batch * p.kv_heads);
  // Not two groups of the same keys, of which one would wait for the sums of the other
  const int groups_at_once = std::min(all_kv_heads, !falls(p.mask)    ? apart
                                                    : Shape::kAnyMask ? kRowElements / Shape::kHeadDim
                                                                      : 1);
  const BackwardArgs without_lists = {
      .row_statistics = workspace.row_statistics,
      .dq_sums = workspace.dq,
      .counters = workspace.counters,
      .key_sums = workspace.key_sums,
      .key_counters = workspace.key_counters,
      .tokens = tokens,
      .kv_tokens = kv_tokens,
      .heads = static_cast<int>(p.heads),
      .kv_heads = static_cast<int>(p.kv_heads),
      .heads_per_kv = static_cast<int>(p.heads / p.kv_heads),
      .query_tiles = query_tiles,
      .key_blocks = key_blocks,
      .all_kv_heads = all_kv_heads,
      .heads_per_work_tile = heads_per_work_tile,
      .work_tiles = static_cast<uint32_t>(groups) * key_blocks,
      .groups_at_once = groups_at_once,
      .descending_groups = descending_groups,
      .wave_blocks = Shape::kListed ? 0 : wave_blocks_of(p.mask, key_blocks, sms),
      .causal = p.mask.causal,
      .score = score_args_of(p),
      .dropout = DropoutMask(dropout_of(p)),
      .mask = mask_of(p),
      .blocks_of_tiles = workspace.blocks_of_tiles,
      .tiles_of_blocks = workspace.tiles_of_blocks,
      .block_tiles = workspace.block_tiles,
      .alibi = alibi_of(p),
      .query_offset = static_cast<int>(p.mask.offset),
      .cap = score_cap_of(p),
  };
  auto args = with_lists<Shape>(without_lists, p);
  if constexpr (Shape::kAnyMask) {
    status = launch(find_spans_kernel<Shape>, static_cast<unsigned>(p.batch), kSpansThreads, 0, stream,
                    args.mask, query_tiles, key_blocks, workspace.blocks_of_tiles, workspace.tiles_of_blocks,
                    workspace.block_tiles);
    if (status != ATTN_OK) return status;
  }
  if constexpr (Shape::kListed) {
    status = find_listed_tiles<Shape>(&args, f, workspace, stream);
    if (status != ATTN_OK) return status;
  }
  status = make_tensor_maps<Shape>(&args, f);
  if (status != ATTN_OK) return status;
  return launch(backward_kernel<Shape>, std::min(static_cast<uint32_t>(sms), args.work_tiles),
                Shape::kThreads, BackwardMemory<Shape>::kBytes, stream, args);
}

// The shape's kernel for plain masks, or the one for any mask, as the problem has it
template <class Shape>
AttnStatus launch_backward_by_mask(const AttnBackward& f, CUstream_st* stream) {
  return mask_of(f.problem).plain() ? launch_backward<Shape>(f, stream)
                                    : launch_backward<WithMask<Shape>>(f, stream);
}

}  // namespace tessera::attention::sm90

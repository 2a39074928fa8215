// The backward of wide heads as three launches: row statistics, dK and dV, dQ.
#pragma once

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/backward_rows.cuh"
#include "kernels/attention/sm90/wide_keys.cuh"
#include "kernels/attention/sm90/wide_queries.cuh"
#include "kernels/hopper/tensor_map.h"

namespace tessera::attention::sm90 {

template <class Shape>
AttnStatus launch_wide_backward(const AttnBackward& f, CUstream_st* stream) {
  constexpr int kRows = WideShape::kRows;
  const AttnProblem& p = f.problem;
  const WideWorkspace workspace(f.workspace, p);
  const auto blocks_of = [](int64_t rows, int block) { return static_cast<int>((rows + block - 1) / block); };
  const BackwardRowsArgs rows = {.out = view<const bf16>(f.out),
                                 .dout = view<const bf16>(f.dout),
                                 .lse = f.lse,
                                 .row_statistics = workspace.row_statistics,
                                 .counters = nullptr,
                                 .counter_count = 0,
                                 .batch = static_cast<int>(p.batch),
                                 .tokens = static_cast<int>(p.tokens),
                                 .query_tiles = blocks_of(p.tokens, kRows),
                                 .heads = static_cast<int>(p.heads),
                                 .head_dim = p.head_dim,
                                 .delta_scale = 1};
  AttnStatus status = launch_row_statistics<Shape>(f, rows, stream);
  if (status != ATTN_OK) return status;

  WideArgs args = {.row_statistics = workspace.row_statistics,
                   .heads = static_cast<int>(p.heads),
                   .kv_heads = static_cast<int>(p.kv_heads),
                   .heads_per_kv = static_cast<int>(p.heads / p.kv_heads),
                   .query_tiles = rows.query_tiles,
                   .all_heads = static_cast<int>(p.batch * p.heads),
                   .all_kv_heads = static_cast<int>(p.batch * p.kv_heads),
                   .score = score_args_of(p),
                   .mask = mask_of(p),
                   .cap = score_cap_of(p)};
  const struct {
    CUtensorMap* map;
    const AttnTensor* tensor;
    int64_t tokens, heads;
  } maps[] = {{&args.q, &f.q, p.tokens, p.heads},        {&args.dout, &f.dout, p.tokens, p.heads},
              {&args.dq, &f.dq, p.tokens, p.heads},      {&args.k, &f.k, p.kv_tokens, p.kv_heads},
              {&args.v, &f.v, p.kv_tokens, p.kv_heads},  {&args.dk, &f.dk, p.kv_tokens, p.kv_heads},
              {&args.dv, &f.dv, p.kv_tokens, p.kv_heads}};
  for (const auto& m : maps)
    if (!make_tensor_map(*m.map, HeadBoxes{.tensor = view<void>(*m.tensor),
                                           .batch = p.batch,
                                           .tokens = m.tokens,
                                           .heads = m.heads,
                                           .box = box_of(p.head_dim, WideShape::kHeadDim, kRows)}))
      return ATTN_LAUNCH_FAILED;
  status = launch(wide_keys_kernel<Shape>,
                  static_cast<unsigned>(blocks_of(p.kv_tokens, kRows) * args.all_kv_heads),
                  WideShape::kThreads, WideKeysMemory::kBytes, stream, args);
  if (status != ATTN_OK) return status;
  return launch(wide_queries_kernel<Shape>,
                static_cast<unsigned>(blocks_of(p.tokens, WideQueriesWork::kRows) * args.all_heads),
                WideShape::kThreads, WideQueriesMemory::kBytes, stream, args);
}

}  // namespace tessera::attention::sm90

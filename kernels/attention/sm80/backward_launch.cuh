// The backward as launches: row statistics, then the main kernel. There is one mode, whatever
// AttnBackward::deterministic says: the fixed order of additions gives the same bits every time.
#pragma once

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm80/backward.cuh"
#include "kernels/attention/sm80/backward_rows.cuh"
#include "kernels/attention/sm80/workspace.h"

namespace tessera::attention::sm80 {

template <class Tile>
BackwardArgs backward_args(const AttnBackward& f) {
  const AttnProblem& p = f.problem;
  const BackwardWorkspace workspace(f.workspace, p);
  static_assert(BackwardWorkspace::kRowPadding % Tile::kBlockQ == 0);
  static_assert(Tile::kBlockQ >= BackwardWorkspace::smallest_block_q(Tile::kHeadDim));
  const Sizes sizes = sizes_of(p);
  BackwardArgs args = {tensors_of<bf16>(f)};
  args.lse = f.lse;
  args.log2_sum_exp = workspace.log2_sum_exp;
  args.delta = workspace.delta;
  args.dq_sums = workspace.dq;
  args.counters = workspace.counters;
  args.tokens = sizes.tokens;
  args.padded_tokens = static_cast<int>(workspace.padded_tokens);
  args.query_blocks = args.padded_tokens / Tile::kBlockQ;
  args.key_blocks = static_cast<int>((p.kv_tokens + Tile::kBlockK - 1) / Tile::kBlockK);
  args.heads = sizes.heads;
  args.kv_heads = sizes.kv_heads;
  args.group = sizes.group;
  args.scale = sizes.score.scale;
  args.head_dim = p.head_dim;
  args.dropout = DropoutMask(dropout_of(p));
  args.mask = mask_of(p);
  args.alibi = alibi_of(p);
  args.cap = score_cap_of(p);
  return args;
}

template <class Tile, bool kDropout, MaskKind kMask>
AttnStatus launch_backward(const AttnBackward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const auto args = with_blocks<kMask>(backward_args<Tile>(f), p);
  const auto heads = static_cast<unsigned>(p.batch * p.heads),
             kv_heads = static_cast<unsigned>(p.batch * p.kv_heads);

  const int64_t rows = heads * static_cast<int64_t>(args.padded_tokens);
  constexpr int kRowsPerCta = kRowsThreads / (Tile::kHeadDim / 8);
  const auto ctas = static_cast<unsigned>((rows + kRowsPerCta - 1) / kRowsPerCta);
  AttnStatus status;
  if constexpr (kMask == MaskKind::kListed) {
    const ListedRowsArgs listed = {args, Tile::kBlockQ, Tile::kBlockK};
    status = launch(backward_rows_kernel<Tile::kHeadDim, Tile::kWhole, true, ListedRowsArgs>, ctas,
                    kRowsThreads, 0, stream, listed, rows);
  } else {
    const auto rows_kernel = backward_rows_kernel<Tile::kHeadDim, Tile::kWhole, kMask == MaskKind::kAny>;
    status = launch(rows_kernel, ctas, kRowsThreads, 0, stream, args, rows);
  }
  if (status != ATTN_OK) return status;

  return launch(backward_kernel<Tile, kMask, kDropout>, kv_heads * args.key_blocks, Tile::kWarps * 32,
                BackwardMemory<Tile>::kBytes, stream, args);
}

// Full and causal masks
template <class Tile, bool kDropout = false>
AttnStatus launch_backward(const AttnBackward& f, CUstream_st* stream) {
  return f.problem.mask.causal ? launch_backward<Tile, kDropout, MaskKind::kCausal>(f, stream)
                               : launch_backward<Tile, kDropout, MaskKind::kFull>(f, stream);
}
template <class Tile>
AttnStatus launch_backward_masked(const AttnBackward& f, CUstream_st* stream) {
  return f.problem.dropout.threshold > 0 ? launch_backward<Dropping<Tile>, true, MaskKind::kAny>(f, stream)
                                         : launch_backward<Narrow<Tile>, false, MaskKind::kAny>(f, stream);
}

// With sparse blocks, without dropout
template <class Tile>
AttnStatus launch_backward_listed(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<Narrow<Tile>, false, MaskKind::kListed>(f, stream);
}

// The same with a cap of scores
template <class Tile>
AttnStatus launch_backward_cap(const AttnBackward& f, CUstream_st* stream) {
  return f.problem.dropout.threshold > 0
             ? launch_backward<Capped<Dropping<Tile>>, true, MaskKind::kAny>(f, stream)
             : launch_backward<Capped<Narrow<Tile>>, false, MaskKind::kAny>(f, stream);
}

// The same with ALiBi
template <class Tile>
AttnStatus launch_backward_alibi(const AttnBackward& f, CUstream_st* stream) {
  return f.problem.dropout.threshold > 0
             ? launch_backward<Biased<Dropping<Tile>>, true, MaskKind::kAny>(f, stream)
             : launch_backward<Biased<Narrow<Tile>>, false, MaskKind::kAny>(f, stream);
}

}  // namespace tessera::attention::sm80

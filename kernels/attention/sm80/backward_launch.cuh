// The backward as launches: row statistics, the main kernel, and dQ to bf16 unless the main kernel does it.
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
  return args;
}

template <class Tile, bool kDropout, bool kDeterministic, MaskKind kMask>
AttnStatus launch_backward(const AttnBackward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const BackwardArgs args = backward_args<Tile>(f);
  const auto heads = static_cast<unsigned>(p.batch * p.heads),
             kv_heads = static_cast<unsigned>(p.batch * p.kv_heads);

  const int64_t rows = heads * static_cast<int64_t>(args.padded_tokens);
  constexpr int kRowsPerCta = kRowsThreads / (Tile::kHeadDim / 8);
  const auto rows_kernel =
      backward_rows_kernel<Tile::kHeadDim, Tile::kWhole, kDeterministic, kMask == MaskKind::kAny>;
  AttnStatus status = launch(rows_kernel, static_cast<unsigned>((rows + kRowsPerCta - 1) / kRowsPerCta),
                             kRowsThreads, 0, stream, args, rows);
  if (status != ATTN_OK) return status;

  status = launch(backward_kernel<Tile, kMask, kDeterministic, kDropout>, kv_heads * args.key_blocks,
                  Tile::kWarps * 32, BackwardMemory<Tile>::kBytes, stream, args);
  if (status != ATTN_OK || kDeterministic) return status;

  return launch(backward_finish_kernel<Tile>, heads * args.query_blocks, Tile::kWarps * 32, 0, stream, args);
}

// Full and causal masks
template <class Tile, bool kDropout, bool kDeterministic>
AttnStatus launch_backward(const AttnBackward& f, CUstream_st* stream) {
  return f.problem.mask.causal ? launch_backward<Tile, kDropout, kDeterministic, MaskKind::kCausal>(f, stream)
                               : launch_backward<Tile, kDropout, kDeterministic, MaskKind::kFull>(f, stream);
}

template <class Tile>
AttnStatus launch_backward(const AttnBackward& f, CUstream_st* stream) {
  return f.deterministic ? launch_backward<Tile, false, true>(f, stream)
                         : launch_backward<Tile, false, false>(f, stream);
}

// With dropout, and with masks other than full and causal, there is one mode, of the same bits: half as many
// kernels to compile.
template <class Tile>
AttnStatus launch_backward_dropout(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<Tile, true, true>(f, stream);
}
template <class Tile>
AttnStatus launch_backward_masked(const AttnBackward& f, CUstream_st* stream) {
  return f.problem.dropout.threshold > 0
             ? launch_backward<Dropping<Tile>, true, true, MaskKind::kAny>(f, stream)
             : launch_backward<Narrow<Tile>, false, true, MaskKind::kAny>(f, stream);
}

}  // namespace tessera::attention::sm80

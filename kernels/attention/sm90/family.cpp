// bf16 on compute capability 9.0: warpgroups, TMA, roles for warps.
#include "kernels/attention/family.h"

#include "kernels/attention/sm90/fp8_shape.h"
#include "kernels/attention/sm90/kernels.h"
#include "kernels/attention/sm90/workspace.h"

namespace tessera::attention::sm90 {
namespace {

// Wider heads have kernels of their own, without dropout.
constexpr int kWidest = 128;
bool is_wide(const AttnProblem& p) { return p.head_dim > kWidest; }

// The other forwards leave them to apply_sinks().
bool adds_sinks(const AttnProblem& p) {
  return p.sinks != 0 && !is_wide(p) && p.mask.blocks.size == 0 && p.dropout.threshold == 0 &&
         p.alibi_heads == 0 && p.score_cap == 0;
}
// With ALiBi and with dropout they are not those that TiledRowStatistics says.
TiledRowStatistics row_statistics(const AttnBackward& f) {
  const AttnProblem& p = f.problem;
  if (is_wide(p) || p.dropout.threshold > 0 || p.alibi_heads > 0) return {};
  const int rows = BackwardWorkspace::query_tile_of(p);
  return {.data = BackwardWorkspace(f.workspace, p).row_statistics,
          .tiles = (p.tokens + rows - 1) / rows,
          .rows = rows};
}

#ifdef TESSERA_ATTENTION_SM90
using Forward = AttnStatus (*)(const AttnForward&, CUstream_st*);
using Backward = AttnStatus (*)(const AttnBackward&, CUstream_st*);

// The kernels of a width: for the plain masks without dropout and with it, for any mask, for sparse blocks,
// with ALiBi, with a cap and with sinks; a backward with sinks is as others
template <class Launch>
struct Kernels {
  Launch plain, dropout, mask, listed, alibi, cap, sinks = nullptr;
};
template <class Launch>
Launch pick(const AttnProblem& p, const Kernels<Launch>& up_to_64, const Kernels<Launch>& whole_128,
            const Kernels<Launch>& narrow_128) {
  const Kernels<Launch>& of_width = p.head_dim <= 64 ? up_to_64 : p.head_dim == 128 ? whole_128 : narrow_128;
  if (p.mask.blocks.size > 0) return of_width.listed;
  if (p.alibi_heads > 0) return of_width.alibi;
  if (p.score_cap > 0) return of_width.cap;
  if (adds_sinks(p) && of_width.sinks != nullptr) return of_width.sinks;
  if (!mask_of(p).plain()) return of_width.mask;
  return p.dropout.threshold > 0 ? of_width.dropout : of_width.plain;
}

AttnStatus forward_wide(const AttnForward& f, CUstream_st* stream) {
  const bool whole = f.problem.head_dim == 256;
  if (f.problem.score_cap > 0) return whole ? forward_256_cap(f, stream) : forward_256_narrow_cap(f, stream);
  if (mask_of(f.problem).plain()) return whole ? forward_256(f, stream) : forward_256_narrow(f, stream);
  return whole ? forward_256_mask(f, stream) : forward_256_narrow_mask(f, stream);
}
AttnStatus backward_wide(const AttnBackward& f, CUstream_st* stream) {
  const bool whole = f.problem.head_dim == 256;
  if (f.problem.score_cap > 0)
    return whole ? backward_256_cap(f, stream) : backward_256_narrow_cap(f, stream);
  return whole ? backward_256(f, stream) : backward_256_narrow(f, stream);
}
AttnStatus forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  if (is_wide(f.problem)) return forward_wide(f, stream);
  return pick<Forward>(
      f.problem,
      {forward_64, forward_64_dropout, forward_64_mask, forward_64_listed, forward_64_alibi, forward_64_cap,
       forward_64_sink},
      {forward_128, forward_128_dropout, forward_128_mask, forward_128_listed, forward_128_alibi,
       forward_128_cap, forward_128_sink},
      {forward_128_narrow, forward_128_narrow_dropout, forward_128_narrow_mask, forward_128_narrow_listed,
       forward_128_narrow_alibi, forward_128_narrow_cap, forward_128_narrow_sink})(f, stream);
}
AttnStatus backward(const AttnBackward& f, int /*arch*/, CUstream_st* stream) {
  if (is_wide(f.problem)) return backward_wide(f, stream);
  return pick<Backward>(f.problem,
                        {backward_64, backward_64_dropout, backward_64_mask, backward_64_listed,
                         backward_64_alibi, backward_64_cap},
                        {backward_128, backward_128_dropout, backward_128_mask, backward_128_listed,
                         backward_128_alibi, backward_128_cap},
                        {backward_128_narrow, backward_128_narrow_dropout, backward_128_narrow_mask,
                         backward_128_narrow_listed, backward_128_narrow_alibi, backward_128_narrow_cap})(
      f, stream);
}
AttnStatus forward_fp8(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  switch (tile_width(f.problem.head_dim)) {
    case 64:
      return forward_fp8_64(f, stream);
    case 128:
      return forward_fp8_128(f, stream);
    default:
      return forward_fp8_256(f, stream);
  }
}
#else
constexpr std::nullptr_t forward = nullptr, backward = nullptr, forward_fp8 = nullptr;
#endif

TileRows tile_rows(const AttnProblem& p, int /*arch*/) {
  if (is_wide(p)) return {ForwardTile<256>::kBlockQ, WideWorkspace::kRowPadding, p.heads / p.kv_heads};
  return {p.head_dim <= 64 ? ForwardTile<64>::kBlockQ : ForwardTile<128>::kBlockQ, BackwardWorkspace::kBlockK,
          BackwardWorkspace::heads_per_work_tile(p)};
}

TileRows tile_rows_fp8(const AttnProblem& p, int arch) {
  TileRows rows = tile_rows(p, arch);
  rows.queries = is_wide(p) ? Fp8Tile<256>::kBlockQ : Fp8Tile<128>::kBlockQ;
  return rows;
}

size_t backward_workspace(const AttnProblem& p) {
  return is_wide(p) ? workspace_bytes<WideWorkspace>(p) : workspace_bytes<BackwardWorkspace>(p);
}

constexpr KernelFamily kBf16 = {.name = "sm90",
                                .lowest_arch = kHopper,
                                .highest_arch = kHopper,
                                .dtype = ATTN_BF16,
                                .head_dims = {.step = 8, .most = 256},
                                .most_tokens = kMostTokens,
                                .most_rows = kMostRows,
                                .row_padding = BackwardWorkspace::kRowPadding,
                                .by_name_only = false,
                                .most_with_dropout = kWidest,
                                .most_with_alibi = kWidest,
                                .alibis = Alibis::kCausalWithoutDropout,
                                .with_cap = Caps::kWithoutDropout,
                                .masks = Masks::kAllWithoutDropout,
                                .tile_rows = tile_rows,
                                .forward_workspace = workspace_bytes<ForwardWorkspace>,
                                .backward_workspace = backward_workspace,
                                .forward = forward,
                                .backward = backward,
                                .adds_sinks = adds_sinks,
                                .row_statistics = row_statistics,
                                .most_with_blocks = kWidest};

// The products of the forward in FP8, of plain scores; the backward is that of bf16.
constexpr KernelFamily in_fp8() {
  KernelFamily family = kBf16;
  family.name = "sm90 in FP8";
  family.most_with_dropout = family.most_with_alibi = family.most_with_blocks = 0;
  family.with_cap = Caps::kNone;
  family.tile_rows = tile_rows_fp8;
  family.forward_workspace = workspace_bytes<Fp8Workspace>;
  family.forward = forward_fp8;
  family.adds_sinks = nullptr;
  family.in_fp8 = true;
  return family;
}

}  // namespace

constinit const KernelFamily kFamily = kBf16, kFp8Family = in_fp8();

}  // namespace tessera::attention::sm90

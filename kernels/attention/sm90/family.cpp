// bf16 on compute capability 9.0: warpgroups, TMA, roles for warps.
#include "kernels/attention/family.h"

#include "kernels/attention/sm90/kernels.h"
#include "kernels/attention/sm90/workspace.h"

namespace tessera::attention::sm90 {
namespace {

// Wider heads have kernels of their own, without dropout.
constexpr int kWidest = 128;
bool is_wide(const AttnProblem& p) { return p.head_dim > kWidest; }

#ifdef TESSERA_ATTENTION_SM90
using Forward = AttnStatus (*)(const AttnForward&, CUstream_st*);
using Backward = AttnStatus (*)(const AttnBackward&, CUstream_st*);

// The kernels of a width: for the plain masks without dropout and with it, and for any mask
template <class Launch>
struct Kernels {
  Launch plain, dropout, mask;
};
template <class Launch>
Launch pick(const AttnProblem& p, const Kernels<Launch>& up_to_64, const Kernels<Launch>& whole_128,
            const Kernels<Launch>& narrow_128) {
  const Kernels<Launch>& of_width = p.head_dim <= 64 ? up_to_64 : p.head_dim == 128 ? whole_128 : narrow_128;
  if (!mask_of(p).plain()) return of_width.mask;
  return p.dropout.threshold > 0 ? of_width.dropout : of_width.plain;
}

AttnStatus forward_wide(const AttnForward& f, CUstream_st* stream) {
  const bool whole = f.problem.head_dim == 256;
  if (mask_of(f.problem).plain()) return whole ? forward_256(f, stream) : forward_256_narrow(f, stream);
  return whole ? forward_256_mask(f, stream) : forward_256_narrow_mask(f, stream);
}
AttnStatus forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  if (is_wide(f.problem)) return forward_wide(f, stream);
  return pick<Forward>(f.problem, {forward_64, forward_64_dropout, forward_64_mask},
                       {forward_128, forward_128_dropout, forward_128_mask},
                       {forward_128_narrow, forward_128_narrow_dropout, forward_128_narrow_mask})(f, stream);
}
AttnStatus backward(const AttnBackward& f, int /*arch*/, CUstream_st* stream) {
  if (is_wide(f.problem))
    return f.problem.head_dim == 256 ? backward_256(f, stream) : backward_256_narrow(f, stream);
  return pick<Backward>(f.problem, {backward_64, backward_64_dropout, backward_64_mask},
                        {backward_128, backward_128_dropout, backward_128_mask},
                        {backward_128_narrow, backward_128_narrow_dropout, backward_128_narrow_mask})(f,
                                                                                                      stream);
}
#else
constexpr std::nullptr_t forward = nullptr, backward = nullptr;
#endif

TileRows tile_rows(const AttnProblem& p, int /*arch*/) {
  if (is_wide(p)) return {ForwardTile<256>::kBlockQ, WideWorkspace::kRowPadding, p.heads / p.kv_heads};
  return {p.head_dim <= 64 ? ForwardTile<64>::kBlockQ : ForwardTile<128>::kBlockQ, BackwardWorkspace::kBlockK,
          BackwardWorkspace::heads_per_work_tile(p)};
}

size_t backward_workspace(const AttnProblem& p) {
  return is_wide(p) ? workspace_bytes<WideWorkspace>(p) : workspace_bytes<BackwardWorkspace>(p);
}

}  // namespace

constinit const KernelFamily kFamily = {.name = "sm90",
                                        .lowest_arch = kHopper,
                                        .highest_arch = kHopper,
                                        .dtype = ATTN_BF16,
                                        .head_dims = {.step = 8, .most = 256},
                                        .most_tokens = kMostTokens,
                                        .most_rows = kMostRows,
                                        .row_padding = BackwardWorkspace::kRowPadding,
                                        .by_name_only = false,
                                        .most_with_dropout = kWidest,
                                        .most_with_alibi = 0,
                                        .masks = Masks::kAllWithoutDropout,
                                        .tile_rows = tile_rows,
                                        .forward_workspace = workspace_bytes<ForwardWorkspace>,
                                        .backward_workspace = backward_workspace,
                                        .forward = forward,
                                        .backward = backward};

}  // namespace tessera::attention::sm90

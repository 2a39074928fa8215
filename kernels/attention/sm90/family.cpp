// bf16 on compute capability 9.0: warpgroups, the copy engine, roles for warps.
#include "kernels/attention/family.h"

#include "kernels/attention/sm90/kernels.h"
#include "kernels/attention/sm90/workspace.h"

namespace tessera::attention::sm90 {
namespace {

#ifdef TESSERA_ATTENTION_SM90
AttnStatus forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  const bool dropout = f.problem.dropout.threshold > 0;
  if (f.problem.head_dim <= 64) return (dropout ? forward_64_dropout : forward_64)(f, stream);
  if (f.problem.head_dim == 128) return (dropout ? forward_128_dropout : forward_128)(f, stream);
  return (dropout ? forward_128_narrow_dropout : forward_128_narrow)(f, stream);
}
AttnStatus backward(const AttnBackward& f, int /*arch*/, CUstream_st* stream) {
  const bool dropout = f.problem.dropout.threshold > 0;
  if (f.problem.head_dim <= 64) return (dropout ? backward_64_dropout : backward_64)(f, stream);
  if (f.problem.head_dim == 128) return (dropout ? backward_128_dropout : backward_128)(f, stream);
  return (dropout ? backward_128_narrow_dropout : backward_128_narrow)(f, stream);
}
#else
constexpr std::nullptr_t forward = nullptr, backward = nullptr;
#endif

TileRows tile_rows(int head_dim, int /*arch*/) {
  return head_dim <= 64 ? TileRows{ForwardTile<64>::kBlockQ, BackwardShape<64>::kBlockK}
                        : TileRows{ForwardTile<128>::kBlockQ, BackwardShape<128>::kBlockK};
}

}  // namespace

constinit const Family kFamily = {.name = "sm90",
                                  .lowest_arch = kHopper,
                                  .highest_arch = kHopper,
                                  .dtype = ATTN_BF16,
                                  .head_dims = {.step = 8, .most = 128},
                                  .most_tokens = kMostTokens,
                                  .most_rows = kMostRows,
                                  .row_padding = BackwardWorkspace::kRowPadding,
                                  .by_name_only = false,
                                  .dropout = true,
                                  .masks = Masks::kPlain,
                                  .tile_rows = tile_rows,
                                  .forward_workspace = nullptr,
                                  .backward_workspace = workspace_bytes<BackwardWorkspace>,
                                  .forward = forward,
                                  .backward = backward};

}  // namespace tessera::attention::sm90

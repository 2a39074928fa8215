// bf16 from compute capability 8.0 on: products on tensor cores, in registers, with loads ahead (mma.sync).
#include "kernels/attention/family.h"

#include "kernels/attention/sm80/kernels.h"
#include "kernels/attention/sm80/workspace.h"

namespace tessera::attention::sm80 {
namespace {

constexpr int kHeadDims[] = {64, 128};

// Compute capabilities whose CTAs get 163 KB of shared memory or more; the others get 99.
bool large_shared_memory(int arch) { return arch == 80 || arch == 87 || (arch >= 90 && arch < 120); }

#ifdef TESSERA_ATTENTION_CUDA
AttnStatus forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  return f.problem.head_dim == 64 ? forward_64(f, stream) : forward_128(f, stream);
}
AttnStatus backward(const AttnBackward& f, int arch, CUstream_st* stream) {
  if (f.problem.head_dim == 64) return backward_64(f, stream);
  return large_shared_memory(arch) ? backward_128(f, stream) : backward_128_small(f, stream);
}
#else
constexpr std::nullptr_t forward = nullptr, backward = nullptr;
#endif

TileRows tile_rows(int head_dim, int arch) {
  if (head_dim == 64) return {ForwardTile<64>::kBlockQ, BackwardTile<64>::kBlockK};
  return {ForwardTile<128>::kBlockQ,
          large_shared_memory(arch) ? BackwardTile<128>::kBlockK : SmallBackwardTile128::kBlockK};
}

}  // namespace

constinit const Family kFamily = {.name = "sm80",
                                  .lowest_arch = kLowestArch,
                                  .highest_arch = kAnyLaterArch,
                                  .dtype = ATTN_BF16,
                                  .head_dims = kHeadDims,
                                  .most_tokens = kMostTokens,
                                  .most_rows = kMostRows,
                                  .row_padding = BackwardWorkspace::kRowPadding,
                                  .by_name_only = false,
                                  .tile_rows = tile_rows,
                                  .backward_workspace = workspace_bytes<BackwardWorkspace>,
                                  .forward = forward,
                                  .backward = backward};

}  // namespace tessera::attention::sm80

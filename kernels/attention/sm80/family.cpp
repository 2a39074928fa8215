// bf16 from compute capability 8.0 on: products on tensor cores, in registers, with loads ahead (mma.sync).
#include "kernels/attention/family.h"

#include "kernels/attention/mask.h"
#include "kernels/attention/sm80/kernels.h"
#include "kernels/attention/sm80/workspace.h"

namespace tessera::attention::sm80 {
namespace {

// Compute capabilities whose CTAs get 163 KB of shared memory or more; the others get 99.
bool large_shared_memory(int arch) { return arch == 80 || arch == 87 || (arch >= 90 && arch < 120); }

#ifdef TESSERA_ATTENTION_CUDA
AttnStatus forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  const int head_dim = f.problem.head_dim;
  if (f.problem.mask.blocks.size > 0) {
    if (head_dim <= 64) return forward_64_listed(f, stream);
    return head_dim <= 128 ? forward_128_listed(f, stream) : forward_256_listed(f, stream);
  }
  if (f.problem.score_cap > 0) {
    if (head_dim <= 64) return forward_64_cap(f, stream);
    return head_dim <= 128 ? forward_128_cap(f, stream) : forward_256_cap(f, stream);
  }
  if (f.problem.alibi_heads > 0) {
    if (head_dim <= 64) return forward_64_alibi(f, stream);
    return head_dim <= 128 ? forward_128_alibi(f, stream) : forward_256_alibi(f, stream);
  }
  if (!mask_of(f.problem).plain()) {
    if (head_dim <= 64) return forward_64_masked(f, stream);
    return head_dim <= 128 ? forward_128_masked(f, stream) : forward_256_masked(f, stream);
  }
  if (f.problem.dropout.threshold > 0) {
    if (head_dim <= 64) return forward_64_dropout(f, stream);
    return head_dim <= 128 ? forward_128_dropout(f, stream) : forward_256_dropout(f, stream);
  }
  if (head_dim <= 64) return head_dim == 64 ? forward_64(f, stream) : forward_64_narrow(f, stream);
  if (head_dim <= 128) return head_dim == 128 ? forward_128(f, stream) : forward_128_narrow(f, stream);
  return forward_256(f, stream);
}
AttnStatus backward_masked(const AttnBackward& f, bool large, CUstream_st* stream) {
  const int head_dim = f.problem.head_dim;
  if (head_dim <= 64) return backward_64_masked(f, stream);
  if (head_dim > 128) return large ? backward_256_masked(f, stream) : backward_256_small_masked(f, stream);
  return large ? backward_128_masked(f, stream) : backward_128_small_masked(f, stream);
}
AttnStatus backward_dropout(const AttnBackward& f, bool large, CUstream_st* stream) {
  const int head_dim = f.problem.head_dim;
  if (head_dim <= 64) return backward_64_dropout(f, stream);
  if (head_dim > 128) return large ? backward_256_dropout(f, stream) : backward_256_small_dropout(f, stream);
  return large ? backward_128_dropout(f, stream) : backward_128_small_dropout(f, stream);
}
AttnStatus backward_alibi(const AttnBackward& f, bool large, CUstream_st* stream) {
  const int head_dim = f.problem.head_dim;
  if (head_dim <= 64) return backward_64_alibi(f, stream);
  if (head_dim > 128) return large ? backward_256_alibi(f, stream) : backward_256_small_alibi(f, stream);
  return large ? backward_128_alibi(f, stream) : backward_128_small_alibi(f, stream);
}
AttnStatus backward_cap(const AttnBackward& f, bool large, CUstream_st* stream) {
  const int head_dim = f.problem.head_dim;
  if (head_dim <= 64) return backward_64_cap(f, stream);
  if (head_dim > 128) return large ? backward_256_cap(f, stream) : backward_256_small_cap(f, stream);
  return large ? backward_128_cap(f, stream) : backward_128_small_cap(f, stream);
}
AttnStatus backward_listed(const AttnBackward& f, bool large, CUstream_st* stream) {
  const int head_dim = f.problem.head_dim;
  if (head_dim <= 64) return backward_64_listed(f, stream);
  if (head_dim > 128) return large ? backward_256_listed(f, stream) : backward_256_small_listed(f, stream);
  return large ? backward_128_listed(f, stream) : backward_128_small_listed(f, stream);
}
AttnStatus backward(const AttnBackward& f, int arch, CUstream_st* stream) {
  const int head_dim = f.problem.head_dim;
  const bool large = large_shared_memory(arch);
  if (f.problem.mask.blocks.size > 0) return backward_listed(f, large, stream);
  if (f.problem.score_cap > 0) return backward_cap(f, large, stream);
  if (f.problem.alibi_heads > 0) return backward_alibi(f, large, stream);
  if (!mask_of(f.problem).plain()) return backward_masked(f, large, stream);
  if (f.problem.dropout.threshold > 0) return backward_dropout(f, large, stream);
  if (head_dim <= 64) return head_dim == 64 ? backward_64(f, stream) : backward_64_narrow(f, stream);
  if (head_dim > 128) return large ? backward_256(f, stream) : backward_256_small(f, stream);
  if (head_dim == 128) return large ? backward_128(f, stream) : backward_128_small(f, stream);
  return large ? backward_128_narrow(f, stream) : backward_128_small_narrow(f, stream);
}
#else
constexpr std::nullptr_t forward = nullptr, backward = nullptr;
#endif

TileRows tile_rows(const AttnProblem& p, int arch) {
  const bool large = large_shared_memory(arch);
  const int64_t heads = p.heads / p.kv_heads;
  if (p.head_dim <= 64) return {ForwardTile<64>::kBlockQ, BackwardTile<64>::kBlockK, heads};
  if (p.head_dim <= 128) {
    return {ForwardTile<128>::kBlockQ, large ? BackwardTile<128>::kBlockK : SmallBackwardTile128::kBlockK,
            heads};
  }
  return {ForwardTile<256>::kBlockQ, large ? BackwardTile<256>::kBlockK : SmallBackwardTile256::kBlockK,
          heads};
}

}  // namespace

constinit const KernelFamily kFamily = {.name = "sm80",
                                        .lowest_arch = kLowestArch,
                                        .highest_arch = kAnyLaterArch,
                                        .dtype = ATTN_BF16,
                                        .head_dims = {.step = 8, .most = 256},
                                        .most_tokens = kMostTokens,
                                        .most_rows = kMostRows,
                                        .row_padding = BackwardWorkspace::kRowPadding,
                                        .by_name_only = false,
                                        .most_with_dropout = 256,
                                        .most_with_alibi = 256,
                                        .alibis = Alibis::kAll,
                                        .with_cap = Caps::kAll,
                                        .masks = Masks::kAll,
                                        .tile_rows = tile_rows,
                                        .forward_workspace = nullptr,
                                        .backward_workspace = workspace_bytes<BackwardWorkspace>,
                                        .forward = forward,
                                        .backward = backward,
                                        .most_with_blocks = 256};

}  // namespace tessera::attention::sm80

// The answers of attention.h that need no device. Also linked where there is no CUDA.
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention {
namespace {

constexpr int kLowestArch = 80;
// What a grid can count: heads and batch in its y and z, and in x up to 2^31 - 1 CTAs, each of at least 8
// rows of a tensor. Rows of a head are counted in int.
constexpr int64_t kMostTokens = int64_t{1} << 30, kMostHeads = 65535, kMostRows = int64_t{1} << 33;

bool head_dim_served(AttnDtype dtype, int head_dim) {
  if (dtype == ATTN_BF16) return head_dim == 64 || head_dim == 128;
  return head_dim == 16 || head_dim == 32 || head_dim == 64 || head_dim == 128;
}

bool shape_served(const AttnProblem& p) {
  if (p.batch <= 0 || p.tokens <= 0 || p.heads <= 0 || p.kv_heads <= 0) return false;
  if (p.heads % p.kv_heads != 0) return false;
  if (p.batch > kMostHeads || p.tokens > kMostTokens || p.heads > kMostHeads) return false;
  constexpr int64_t kPadding = sm80::BackwardWorkspace::kRowPadding;
  const int64_t padded_tokens = (p.tokens + kPadding - 1) / kPadding * kPadding;
  return p.batch * p.heads <= kMostRows / padded_tokens;
}

}  // namespace
}  // namespace tessera::attention

using namespace tessera::attention;

extern "C" AttnStatus attn_supports(const AttnProblem* problem, int arch) {
  const AttnProblem& p = *problem;
  if (arch < kLowestArch) return ATTN_BAD_ARCH;
  if (p.dtype != ATTN_BF16 && p.dtype != ATTN_F32) return ATTN_BAD_HEAD_DIM;
  if (!head_dim_served(p.dtype, p.head_dim)) return ATTN_BAD_HEAD_DIM;
  if (!shape_served(p)) return ATTN_BAD_SHAPE;
  return std::isfinite(p.scale) && p.scale >= 0 ? ATTN_OK : ATTN_BAD_SHAPE;
}

extern "C" size_t attn_backward_workspace(const AttnProblem* problem, int arch, int /*deterministic*/) {
  const AttnProblem& p = *problem;
  if (attn_supports(problem, arch) != ATTN_OK) return 0;
  if (p.dtype == ATTN_F32) return f32::BackwardWorkspace(nullptr, p.batch, p.heads, p.tokens).bytes;
  size_t bytes = sm80::BackwardWorkspace(nullptr, p.batch, p.heads, p.tokens, p.head_dim).bytes;
  // Whether the Hopper kernels were built is not asked here: enough for them and for those that stand in.
  if (arch == 90) {
    bytes = std::max(bytes, sm90::BackwardWorkspace(nullptr, p.batch, p.heads, p.tokens, p.head_dim).bytes);
  }
  return bytes;
}

extern "C" const char* attn_status_text(AttnStatus status) {
  switch (status) {
    case ATTN_OK:
      return "ok";
    case ATTN_BAD_HEAD_DIM:
      return "no kernel serves this head_dim: bf16 takes 64 and 128, fp32 takes 16, 32, 64 and 128";
    case ATTN_BAD_SHAPE:
      return "batch, tokens, heads must be positive and fit the grid; kv_heads must divide heads; scale must "
             "be finite and not negative";
    case ATTN_BAD_ALIGNMENT:
      return "pointers and strides must be multiples of 16 bytes, the workspace of 256";
    case ATTN_BAD_ARCH:
      return "no kernel serves this compute capability: 8.0 or higher is needed";
    case ATTN_NO_WORKSPACE:
      return "the workspace is missing or smaller than attn_backward_workspace() says";
    case ATTN_LAUNCH_FAILED:
      return "the CUDA runtime refused the launch: cudaGetLastError() says why";
  }
  return "unknown status";
}

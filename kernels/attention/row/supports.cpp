#include "kernels/attention/row/row.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::row {

AttnStatus supports(const AttnProblem& p) {
  constexpr int kOldestArch = 80;
  if (p.dtype != ATTN_BF16) return ATTN_BAD_HEAD_DIM;
  if (const AttnStatus status = attn_supports(&p, kOldestArch); status != ATTN_OK) return status;
  const bool fits = p.tokens <= kMostTokens && p.batch * p.heads * p.tokens <= INT32_MAX;
  return fits ? ATTN_OK : ATTN_BAD_SHAPE;
}

}  // namespace tessera::attention::row

// An attention problem for tests that only ask how it would be cut: full mask, as many keys as queries.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::testing {

inline AttnProblem bf16_problem(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads,
                                int head_dim) {
  return {.struct_size = sizeof(AttnProblem),
          .dtype = ATTN_BF16,
          .batch = batch,
          .tokens = tokens,
          .kv_tokens = tokens,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .mask = {},
          .scale = 1,
          .dropout = {}};
}

}  // namespace tessera::testing

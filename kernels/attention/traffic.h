// Bytes that attention moves, by formula: one function a method.
//
// Checked with Nsight Compute on an H200, kernel by kernel and with empty caches, at B 4, H 12, D 64, causal,
// N 1024 and 4096: `read` is right within 3%, but for the main backward kernel of the tensor cores (up to 10%
// more: sums that L2 evicts before their turn); `loaded` within 1%, but for the keys kernel of the row rung
// (6% more). Less than `written` was written by the end of a kernel: up to 45 MB of results were still in L2.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention {

// The traffic of one call. Two readings, because caches decide which is true:
//   read, written    device memory, if a kernel reads each input once and writes each output once: all that
//                    is read again within a kernel comes from L2, nothing between kernels does
//   loaded, stored   what the kernels ask for, be it in L1, L2 or device memory. What cuBLASLt
//                    reads again within a GEMM is not known here and not counted.
struct Traffic {
  double read = 0, written = 0;
  double loaded = 0, stored = 0;
};

// Queries and keys that see each other, over all sequences, of one head. Here and in all that follows, a
// problem's documents are on the host.
double visible_pairs(const AttnProblem& p);

Traffic naive_forward_traffic(const AttnProblem& p);
Traffic naive_backward_traffic(const AttnProblem& p);

// Q once, and K and V once for every `query_rows` rows of queries.
Traffic fused_forward_traffic(const AttnProblem& p, int query_rows);

// One query of each sequence over `keys` cached keys and values, by attn_decode()
Traffic decode_traffic(const AttnDecodeProblem& p, int64_t keys);

// A CTA a row: dQ by one kernel, dK and dV by another.
Traffic row_backward_traffic(const AttnProblem& p);
// The same by tiles of `rows`, after a kernel for delta.
Traffic tiled_backward_traffic(const AttnProblem& p, int rows);
// A CTA takes `key_rows` keys and `heads` of the query heads that share them. Its parts of dQ are added in
// fp32 sums of the workspace; and so are its dK and dV, if other CTAs have the other heads.
Traffic tensor_core_backward_traffic(const AttnProblem& p, int key_rows, int64_t heads);

}  // namespace tessera::attention

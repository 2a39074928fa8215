// How many bytes attention moves, by formula: a function for each method.
//
// Checked with Nsight Compute on an H200, kernel by kernel and with empty caches, at B 4, H 12, D 64, causal,
// N 1024 and 4096. `read` is right within 3%, except for the main backward kernel of the tensor cores: it
// reads up to 10% more, because L2 evicts sums before their turn. `loaded` is right within 1%, except for the
// keys kernel of the rung `row` (6% more). At the end of a kernel less than `written` had been written: up to
// 45 MB of results were still in L2.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention {

// The traffic of one call. There are two kinds, because it depends on the caches which of them is true:
//   read, written    device memory, if each kernel reads each input once and writes each output once: what a
//                    kernel reads again comes from L2, but nothing stays in L2 from one kernel to the next
//   loaded, stored   what the kernels ask for, whether it is in L1, L2 or device memory. What cuBLASLt reads
//                    again within a GEMM is not known here and not counted.
struct Traffic {
  double read = 0, written = 0;
  double loaded = 0, stored = 0;
};

// The pairs of a query and a key that see each other, for one head over all sequences. For all functions in
// this header the documents of a problem are on the host.
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
// A CTA takes `key_rows` keys and `heads` of the query heads that share them. Its parts of dQ are added to
// fp32 sums in the workspace. If other CTAs have the other heads, so are its parts of dK and dV.
Traffic tensor_core_backward_traffic(const AttnProblem& p, int key_rows, int64_t heads);

}  // namespace tessera::attention

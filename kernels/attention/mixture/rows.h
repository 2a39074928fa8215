// Rows of queries, one for each block that a query sees (RowTables), on a GPU. A problem here is a part of
// one: one sequence, and some of its key/value heads, whose tables begin with the first of these.
#pragma once

#include "kernels/attention/mixture.h"

namespace tessera::attention {

// Fills the tables; first_keys: what was chosen, see Chosen
AttnStatus place_rows(const AttnProblem& p, const int32_t* first_keys, const RowTables& tables,
                      CUstream_st* stream);

struct GatheredRows {
  AttnTensor from;  // [1, tokens, heads, head_dim]
  void* to;         // [kv_heads, rows, head_dim]; rows that are nobody's become 0
};
AttnStatus gather_rows(const AttnProblem& p, const RowTables& tables, const GatheredRows& rows,
                       CUstream_st* stream);
// lse [heads, tokens] to [kv_heads, rows]; of nobody's rows -inf
AttnStatus gather_lse(const AttnProblem& p, const RowTables& tables, const float* lse, float* to,
                      CUstream_st* stream);

// out and lse of each query, from those of its rows, in their order:
//   LSE = log(sum of exp(LSE of a row)),   out = sum of exp(LSE of a row - LSE) out of the row
AttnStatus merge_rows(const AttnProblem& p, const RowTables& tables, const MixtureWorkspace& rows,
                      const AttnTensor& out, float* lse, CUstream_st* stream);
// dq of each query: the sum of that of its rows, in their order
AttnStatus sum_rows(const AttnProblem& p, const RowTables& tables, const MixtureWorkspace& rows,
                    const AttnTensor& dq, CUstream_st* stream);

}  // namespace tessera::attention

// Rows of queries on a GPU, one for each block that a query sees (RowTables). A problem here is one sequence
// and some of its key/value heads. Its tables begin with the first of these heads.
#pragma once

#include "kernels/attention/mixture.h"

namespace tessera::attention {

// Fills the tables. `first_keys` are the chosen blocks: see Chosen.
AttnStatus place_rows(const AttnProblem& p, const int32_t* first_keys, const RowTables& tables,
                      CUstream_st* stream);

struct GatheredRows {
  AttnTensor from;  // [1, tokens, heads, head_dim]
  void* to;         // [kv_heads, rows, head_dim]; unused rows become 0
};
AttnStatus gather_rows(const AttnProblem& p, const RowTables& tables, const GatheredRows& rows,
                       CUstream_st* stream);
// Gathers lse from [heads, tokens] to [kv_heads, rows]; unused rows become -inf.
AttnStatus gather_lse(const AttnProblem& p, const RowTables& tables, const float* lse, float* to,
                      CUstream_st* stream);

// Merges out and lse of each query from its rows, in the order of RowTables::places:
//   LSE = log(sum of exp(LSE of a row)),   out = sum of exp(LSE of a row - LSE) out of the row
AttnStatus merge_rows(const AttnProblem& p, const RowTables& tables, const MixtureWorkspace& rows,
                      const AttnTensor& out, float* lse, CUstream_st* stream);
// Sums dq of each query over its rows, in the same order.
AttnStatus sum_rows(const AttnProblem& p, const RowTables& tables, const MixtureWorkspace& rows,
                    const AttnTensor& dq, CUstream_st* stream);

}  // namespace tessera::attention

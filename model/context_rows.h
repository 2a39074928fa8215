// Rows have one number for each token. In a context each rank has the rows of some tokens. These functions
// gather the rows of all tokens, in the order of the sequences, and take a rank's own rows from them. Without
// a context a rank has all rows.
#pragma once

#include "model/model.h"

namespace tessera {

// Returns the rows of all tokens, [B T_all], made from the rows `own` [N] fp32 of each rank. They are in
// memory of the caller's scope; without a context they are `own`. All ranks of the context have to call it.
Tensor rows_of_all_tokens(Arena& arena, const Pass& pass, const Tensor& own);
// Copies this rank's rows of `all` to `own`; padding becomes 0.
void take_own_rows(const Pass& pass, const Tensor& all, const Tensor& own);

}  // namespace tessera

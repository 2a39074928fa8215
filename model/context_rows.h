// Rows of numbers, one for each token, where the ranks of a context have some tokens each: all of them in the
// order of the sequences, and the other way. Without a context a rank has all.
#pragma once

#include "model/model.h"

namespace tessera {

// Of the rows that this rank has, [N] fp32, those of all tokens, [B T_all]: memory of the caller's scope, or
// `own` itself. All ranks of the context call it.
Tensor rows_of_all_tokens(Arena& arena, const Pass& pass, const Tensor& own);
// This rank's of `all`; 0 in its padding
void take_own_rows(const Pass& pass, const Tensor& all, const Tensor& own);

}  // namespace tessera

// Adds rows of gradients to rows of a table, for the backward of embeddings and of the head.
#pragma once

#include "kernels/backend.h"

namespace tessera::cuda {

// table[keys[n]] += factors[n] rows[n], in a fixed order. rows is [N, C] and table [V, C]; keys [N] are int32
// below V, or negative where the factor is 0. It needs embedding_backward_bytes(N, C) of scratch.
void add_rows_to_table(const char* op, const Tensor& keys, const Tensor& rows, const float* factors,
                       const Tensor& table, const Launch& on);

}  // namespace tessera::cuda

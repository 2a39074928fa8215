// What an operation reads and writes, by the names of its fields: for observers that look at values.
#pragma once

#include <vector>

#include "kernels/ops.h"

namespace tessera {

struct Operand {
  const char* field;
  Tensor tensor;
  int64_t first_head = 0, heads = 0;  // of a tensor [B, T, heads, D]; 0: all of the tensor
};

struct Operands {
  std::vector<Operand> read, written;  // a tensor that is changed is in both
};

// The tensors of numbers that `op` computes with, and that it computes; none that are absent, and no ids,
// bits, scratch or largest elements. Where an operand in FP8 takes the place of another, that one is listed.
// Not what attention keeps for its backward, in which a row without keys has no finite number.
Operands operands_of(const AnyOp& op);

}  // namespace tessera

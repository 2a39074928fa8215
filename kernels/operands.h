// The tensors that an operation reads and writes, by the names of its fields: for observers that look at
// values, and for the cost of an operation (op_cost.h).
#pragma once

#include <vector>

#include "kernels/ops.h"

namespace tessera {

struct Operand {
  const char* field;
  Tensor tensor;
  int64_t first_head = 0, heads = 0;  // which heads of a tensor [B, T, heads, D]; heads = 0: the whole tensor

  double bytes() const;
};

struct Operands {
  std::vector<Operand> read, written;  // a tensor that is changed in place is in both
};

// The tensors of numbers that `op` reads, and those that it computes. Absent tensors are left out, and so are
// ids, bits, scratch and largest elements. If an operand in FP8 takes the place of another, the one in FP8 is
// listed. What attention saves for its backward is left out as well: there, a row that sees no key has no
// finite number.
Operands operands_of(const AnyOp& op);

// The bytes of all tensors that `op` reads and writes, ids and bits among them, a tensor that is changed in
// place twice. Left out are single numbers, scratch, and what operands.cpp leaves to op_cost.cpp.
double bytes_moved(const AnyOp& op);

}  // namespace tessera

// The least that an operation needs: the bytes of its tensors, each read once and written once, and the
// arithmetic of its GEMMs, including those of attention. It depends only on the operation's arguments, not on
// the kernel that computes it.
#pragma once

#include "kernels/ops.h"

namespace tessera {

struct OpCost {
  double bytes = 0, flops = 0;
  double fp8_flops = 0;  // those of `flops` whose operands are in FP8

  OpCost& operator+=(const OpCost& other) {
    bytes += other.bytes, flops += other.flops, fp8_flops += other.fp8_flops;
    return *this;
  }
  bool operator==(const OpCost&) const = default;
};

// The cost leaves out arithmetic that is less than a GEMM, and tensors in host memory. It also leaves out
// what only the device knows: where documents begin (attention is counted as if there were none), how long
// the texts of a cache are, and which rows of a table several tokens look up.
OpCost cost_of(const AnyOp& op);

// The cost of one part of a backward. The parts add up to cost_of(op), except that several of them may read
// the same tensor. A part that the operation lacks costs nothing.
OpCost cost_of(const LinearBackward& op, LinearBackward::Part part);

}  // namespace tessera

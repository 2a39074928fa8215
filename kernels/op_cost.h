// What an operation needs at least: the bytes of its tensors, each read once and written once, and the
// arithmetic of its GEMMs, attention's among them. By the operation's arguments alone, whatever
// computes it.
#pragma once

#include "kernels/ops.h"

namespace tessera {

struct OpCost {
  double bytes = 0, flops = 0;
  double fp8_flops = 0;  // of flops, those of operands in FP8

  OpCost& operator+=(const OpCost& other) {
    bytes += other.bytes, flops += other.flops, fp8_flops += other.fp8_flops;
    return *this;
  }
  bool operator==(const OpCost&) const = default;
};

// Left out: arithmetic of less than a GEMM, what lies in host memory, and what only the device knows:
// where documents begin (attention is counted without them), how long the texts of a cache are, which rows of
// a table tokens look up more than once.
OpCost cost_of(const AnyOp& op);

// The cost of one part of a backward; the parts add up to cost_of() but for what several of them read. No
// part that the operation lacks costs anything.
OpCost cost_of(const LinearBackward& op, LinearBackward::Part part);

}  // namespace tessera

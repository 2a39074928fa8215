// The roofline of a training step (Williams, Waterman and Patterson, CACM 52(4), 2009): it compares the time
// of each kind of operation with the least time that its bytes and its arithmetic need. Needs no device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera {

// The operations of a step that do the same work on tensors of the same shapes
struct RooflineRow {
  std::string operation;  // "attention.qkv, dW", "layernorm forward"
  std::string shape;      // "65536 x 768 x 2304"; empty: there are several shapes
  int64_t calls = 0;
  double ms = 0, bytes = 0, flops = 0;  // of all calls
  double fp8_flops = 0;                 // the part of `flops` with operands in FP8
};

struct Roofline {
  std::string what, device;                          // "124M parameters, 64 x 1024 tokens, bf16"
  double bytes_per_second = 0, flop_per_second = 0;  // measured in the same run: a copy, the GEMM peak
  double fp8_flop_per_second = 0;                    // measured likewise, for operands in FP8; if any row has
                                                     // them
  double step_ms = 0;                                // of an undisturbed step
  std::vector<RooflineRow> rows = {};

  // The larger of two times: that of the bytes at the speed of a copy, and that of the arithmetic at the GEMM
  // peaks
  double bound_ms(const RooflineRow& row) const;
  RooflineRow sum() const;       // of all rows
  double sum_of_bounds() const;  // milliseconds
  double gap_ms() const;         // the time of the step beyond its operations: launches, and what the host
                                 // does
  // For a model with windows in some blocks: the time of the step, divided by the time that it would take if
  // each pair of a query and a key that it sees cost as much in blocks with a window as in the others. 0: the
  // model does not have both kinds of blocks
  double cost_of_windows() const;
};

void sort_by_time(Roofline& roofline);  // longest first

std::string table_of(const Roofline& roofline);
std::string to_markdown(const Roofline& roofline);
nlohmann::ordered_json to_json(const Roofline& roofline);

}  // namespace tessera

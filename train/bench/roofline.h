// The roofline of a training step (Williams, Waterman and Patterson, CACM 52(4), 2009): each kind of
// operation beside the time that its bytes and its arithmetic need at least. Knows no device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera {

// The operations of a step that do the same on tensors of the same shapes
struct RooflineRow {
  std::string operation;  // "attention.qkv, dW", "layernorm forward"
  std::string shape;      // "65536 x 768 x 2304"; empty: of several shapes
  int64_t calls = 0;
  double ms = 0, bytes = 0, flops = 0;  // of all calls
  double fp8_flops = 0;                 // of flops, those of operands in FP8
};

struct Roofline {
  std::string what, device;                          // "124M parameters, 64 x 1024 tokens, bf16"
  double bytes_per_second = 0, flop_per_second = 0;  // measured in the same run: a copy, the GEMM peak
  double fp8_flop_per_second = 0;                    // likewise, of operands in FP8; where a row has such
  double step_ms = 0;                                // of a step that nothing disturbs
  std::vector<RooflineRow> rows = {};

  // The larger of two times: of the bytes at the speed of a copy, of the arithmetic at the GEMM peaks
  double bound_ms(const RooflineRow& row) const;
  RooflineRow sum() const;       // of all rows
  double sum_of_bounds() const;  // milliseconds
  double gap_ms() const;         // of the step, beyond its operations: launches, and what the host does
  // Of a model with windows in some blocks: the step over one in which a pair of a query and a key that it
  // sees costs as much within a window as in the other blocks. 0: it has not both kinds
  double cost_of_windows() const;
};

void sort_by_time(Roofline& roofline);  // longest first

std::string table_of(const Roofline& roofline);
std::string to_markdown(const Roofline& roofline);
nlohmann::ordered_json to_json(const Roofline& roofline);

}  // namespace tessera

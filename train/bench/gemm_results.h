// The results of `./bench gemm`, and how they are shown. Needs no device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/gemm/timing.h"

namespace tessera {

struct GemmRow {
  GemmKey key;
  int64_t calls = 0;            // in a micro-batch
  std::vector<GemmTime> times;  // in the library's order; empty: it has no algorithm
};

struct GemmResults {
  GemmPlatform platform;
  double peak_flops = 0;  // the GEMM peak, measured in the same run
  std::vector<GemmRow> rows;
};

// Milliseconds of all GEMMs of a micro-batch, with the first algorithm of each or with the chosen ones
double first_ms(const GemmResults& results);
double chosen_ms(const GemmResults& results);

GemmTable table_from(const GemmResults& results);  // the chosen algorithms
std::string table_of(const GemmResults& results);
nlohmann::ordered_json to_json(const GemmResults& results);

}  // namespace tessera

// What `./bench gemm` measured, and how it is told. Knows no device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/gemm/timing.h"

namespace tessera {

struct GemmRow {
  GemmKey key;
  int64_t calls = 0;            // in a micro-batch
  std::vector<GemmTime> times;  // in the library's order; none: it has no algorithm
};

struct GemmResults {
  GemmPlatform platform;
  double peak_flops = 0;  // the GEMM peak, measured in the same run
  std::vector<GemmRow> rows;
};

// Milliseconds of all GEMMs of a micro-batch, by the first algorithm of each or by the chosen one
double first_ms(const GemmResults& results);
double chosen_ms(const GemmResults& results);

GemmTable table_from(const GemmResults& results);  // what is chosen
std::string table_of(const GemmResults& results);
nlohmann::ordered_json to_json(const GemmResults& results);

}  // namespace tessera

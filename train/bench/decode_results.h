// The results of `./bench attention --decode`, and how they are shown. Needs no device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/small_cache.h"

namespace tessera {

// One query of each sequence over a cache of `problem.capacity` tokens. It sees all of them
struct DecodeCell {
  AttnDecodeProblem problem{};
  CacheDtype cache = CacheDtype::kAuto;
  double ms = 0;                  // of our kernel; on the CPU, of the CPU's
  double cudnn_ms = 0;            // 0: not measured
  std::string why_no_cudnn = {};  // a word or two; empty: it was measured
  double bytes = 0;               // bytes that must be read and written, from a formula
};

struct DecodeResults {
  std::string device, cudnn;  // cuDNN's version; empty: none
  double bandwidth = 0;       // bytes/s of a GPU's memory, measured in the same run; 0: not measured
  int64_t repeats = 0;
  std::vector<DecodeCell> cells;
};

// The share of the measured bandwidth that a cell reached: the least time that its bytes need, divided by its
// time
double share_of_bandwidth(const DecodeCell& cell, double bandwidth);

// "16 x 8192 cached tokens in int4, 32 heads of 128, group 4"
std::string to_string(const AttnDecodeProblem& problem, CacheDtype cache = CacheDtype::kAuto);
std::string table_of(const DecodeResults& results);
nlohmann::ordered_json to_json(const DecodeResults& results);

}  // namespace tessera

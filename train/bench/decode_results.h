// What `./bench attention --decode` measured, and how it is told. Knows no device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/small_cache.h"

namespace tessera {

// One query of each sequence over a cache of `problem.capacity` tokens, all of which it sees
struct DecodeCell {
  AttnDecodeProblem problem{};
  CacheDtype cache = CacheDtype::kAuto;
  double ms = 0;                  // of ours; on the CPU, of the CPU's
  double cudnn_ms = 0;            // 0: not measured
  std::string why_no_cudnn = {};  // in a word or two; empty: it was measured
  double bytes = 0;               // that have to be read and written, by formula
};

struct DecodeResults {
  std::string device, cudnn;  // cuDNN's version; empty: none
  double bandwidth = 0;       // bytes/s of a GPU's memory, measured in the same run; 0: not measured
  int64_t repeats = 0;
  std::vector<DecodeCell> cells;
};

// The share of the measured bandwidth that a cell reached: the time that its bytes need at least, over its
// time
double share_of_bandwidth(const DecodeCell& cell, double bandwidth);

// "16 x 8192 cached tokens in int4, 32 heads of 128, group 4"
std::string to_string(const AttnDecodeProblem& problem, CacheDtype cache = CacheDtype::kAuto);
std::string table_of(const DecodeResults& results);
nlohmann::ordered_json to_json(const DecodeResults& results);

}  // namespace tessera

// What `./bench attention` measures: turns its options into lists of contenders and of problems.
#pragma once

#include <vector>

#include "train/bench/attention_run.h"
#include "train/bench/bench.h"
#include "train/bench/bench_mask.h"

namespace tessera {

struct PlannedProblem {
  BenchMask mask;
  AttnProblem problem;  // each contender has its own dtype; the documents are on the host
  bool in_sweep;        // it is part of the sweep over sequence lengths, and is plotted
};

// Error: a name that this device does not know, or an impossible mask, shape or group.
std::vector<Contender> contenders_of(const std::vector<std::string>& names, const DeviceTraits& device);
// Each of ours is followed by itself with each of these: dropout:P, sinks, alibi, cap:C. Error: another
std::vector<Contender> with_extras(const std::vector<Contender>& contenders,
                                   const std::vector<std::string>& extras);
std::vector<PlannedProblem> problems_of(const BenchAttentionOptions& options, Device device);
// For --decode. Error: an option that it does not use, or an impossible shape or group.
std::vector<AttnDecodeProblem> decode_problems_of(const BenchAttentionOptions& options, Device device);
std::vector<int64_t> parse_attention_shape(const std::string& text);  // "B,N,H,D"; Error: anything else

}  // namespace tessera

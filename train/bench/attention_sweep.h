// What `./bench attention` measures: its options as lists of contenders and of problems.
#pragma once

#include <vector>

#include "train/bench/attention_run.h"
#include "train/bench/bench.h"
#include "train/bench/bench_mask.h"

namespace tessera {

struct PlannedProblem {
  BenchMask mask;
  AttnProblem problem;  // dtype is each contender's own; its documents are on the host
  bool in_sweep;        // of sequence lengths: plotted
};

// Error: a name that is unknown on this device, a mask, shape or group that cannot be.
std::vector<Contender> contenders_of(const std::vector<std::string>& names, const DeviceTraits& device);
// Each of ours is followed by itself with each of these: dropout:P, sinks, alibi, cap:C. Error: another
std::vector<Contender> with_extras(const std::vector<Contender>& contenders,
                                   const std::vector<std::string>& extras);
std::vector<PlannedProblem> problems_of(const BenchAttentionOptions& options, Device device);
// With --decode. Error: an option that it has no use for, a shape or group that cannot be.
std::vector<AttnDecodeProblem> decode_problems_of(const BenchAttentionOptions& options, Device device);
std::vector<int64_t> parse_attention_shape(const std::string& text);  // "B,N,H,D"; Error: anything else

}  // namespace tessera

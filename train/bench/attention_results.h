// The results of `./bench attention`, and how they are shown: tables, JSON, a plot. Needs no device.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/traffic.h"
#include "train/bench/bench_mask.h"

namespace tessera {

inline constexpr const char* kYardstick = "cudnn";  // ratios compare with this

// One way to attend on one problem.
struct AttentionCell {
  std::string rung;
  BenchMask mask;         // the name of problem.mask
  AttnProblem problem{};
  std::string extra;      // see AttentionExtra: stands next to the same rung without it; empty: none
  bool in_sweep = true;   // it is part of the sweep over sequence lengths, and is plotted
  std::string why_not;    // a word or two on why it was not measured; empty: it was
  double forward_ms = 0, backward_ms = 0;
  int64_t saved_bytes = 0;               // what the forward saves for the backward, in addition to q, k, v
                                         // and out
  int64_t workspace_bytes = 0;           // of the call that needs more
  attention::Traffic forward, backward;  // from a formula; zeros: no formula is known
};

struct AttentionResults {
  std::string device;
  std::string cudnn;     // its version, "9.19.0"; empty if it is not measured
  double gemm_peak = 0;  // FLOP/s
  bool cudnn_deterministic = false;
  int64_t repeats = 0;
  std::vector<AttentionCell> cells;  // the cells of a problem are next to one another
};

// The arithmetic of a call: forward, 4 D for every pair of a query and a key that it sees; backward, 2.5
// times as much. As usual, a causal query's own key counts half, so that a causal mask has half of 4 B H N^2
// D.
double attention_flops(const AttnProblem& problem, bool backward);

bool same_problem(const AttnProblem& a, const AttnProblem& b);  // ignores dtypes and extras
std::string to_string(const AttentionCell& cell);               // "64 x 1024 tokens, 12 heads of 64, causal"

// How many times faster than the yardstick, by the geometric mean over
// the problems that both were measured on.
struct MeanRatio {
  double forward = 0, backward = 0;
  int64_t problems = 0;
};
std::map<std::string, MeanRatio> mean_ratios(const AttentionResults& results);

// How much an extra adds to a rung's time, as a share of the time without it. Times are geometric means over
// the problems that were measured both with and without the extra.
struct ExtraPrice {
  double forward = 0, backward = 0, both = 0;
  int64_t problems = 0;
};
// By rung and extra.
std::map<std::pair<std::string, std::string>, ExtraPrice> extra_prices(const AttentionResults& results);

// A table of the cells of one problem; `cudnn` as in AttentionResults.
std::string problem_table(std::span<const AttentionCell> cells, double gemm_peak, const std::string& cudnn);
// Empty, or a warning that this version of cuDNN (as cudnn_version_number() returns it) is too old to compare
// with.
std::string old_cudnn_warning(int version);
nlohmann::ordered_json to_json(const AttentionResults& results);
// TFLOP/s against N: a panel for each head dim, mask and direction, and a line for each rung. All panels have
// the same scale of y, which reaches to the GEMM peak.
std::string to_svg(const AttentionResults& results);

}  // namespace tessera

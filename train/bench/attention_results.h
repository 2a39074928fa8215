// What `./bench attention` measured, and how it is told: tables, JSON, a plot. Knows no device.
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

inline constexpr const char* kYardstick = "cudnn";  // what ratios compare with

// One way to attend on one problem.
struct AttentionCell {
  std::string rung;
  BenchMask mask;         // problem.mask, by its name
  AttnProblem problem{};
  std::string extra;      // see AttentionExtra: beside the same rung without; empty: none
  bool in_sweep = true;   // of sequence lengths: plotted
  std::string why_not;    // in a word or two why it was not measured; empty: it was
  double forward_ms = 0, backward_ms = 0;
  int64_t saved_bytes = 0;               // for the backward, beside q, k, v and out
  int64_t workspace_bytes = 0;           // of the larger of the two calls
  attention::Traffic forward, backward;  // by formula; zeros: no formula is known
};

struct AttentionResults {
  std::string device;
  std::string cudnn;     // its version, "9.19.0"; empty where it is not measured
  double gemm_peak = 0;  // FLOP/s
  bool cudnn_deterministic = false;
  int64_t repeats = 0;
  std::vector<AttentionCell> cells;  // the cells of a problem stand together
};

// Arithmetic of a call: 4 D forward for every pair of a query and a key that it sees, 2.5 times as much
// backward. As usual a causal query's own key counts half: a causal mask is half of 4 B H N^2 D.
double attention_flops(const AttnProblem& problem, bool backward);

bool same_problem(const AttnProblem& a, const AttnProblem& b);  // whatever their dtypes and extras
std::string to_string(const AttentionCell& cell);               // "64 x 1024 tokens, 12 heads of 64, causal"

// How many times faster than the yardstick, by the geometric mean over
// the problems that both were measured on.
struct MeanRatio {
  double forward = 0, backward = 0;
  int64_t problems = 0;
};
std::map<std::string, MeanRatio> mean_ratios(const AttentionResults& results);

// What an extra adds to a rung's time, as a share of its time without; by geometric means over the problems
// that were measured with and without.
struct ExtraPrice {
  double forward = 0, backward = 0, both = 0;
  int64_t problems = 0;
};
// By rung and extra
std::map<std::pair<std::string, std::string>, ExtraPrice> extra_prices(const AttentionResults& results);

// A table of the cells of one problem; `cudnn` as in AttentionResults.
std::string problem_table(std::span<const AttentionCell> cells, double gemm_peak, const std::string& cudnn);
// Empty, or a warning that this version of cuDNN, as
// cudnn_version_number() has it, is too old to compare with.
std::string old_cudnn_warning(int version);
nlohmann::ordered_json to_json(const AttentionResults& results);
// TFLOP/s against N: a panel for each head dim, mask and direction, a line for each rung; the same scale of y
// in all, which reaches the GEMM peak.
std::string to_svg(const AttentionResults& results);

}  // namespace tessera

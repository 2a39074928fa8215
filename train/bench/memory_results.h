// The results of `./bench memory`, and their table, JSON and plot. Needs no device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/choose.h"
#include "kernels/base/ledger.h"
#include "train/bench/power_fit.h"

namespace tessera {

// Peaks of a training step, in bytes.
struct StepMemory {
  int64_t step = 0;       // of all allocations
  int64_t attention = 0;  // of the attention tag: what is saved, and scratch
  int64_t saved = 0;      // of what attention saves for the backward, over all blocks
  bool operator==(const StepMemory&) const = default;
};

// Reads the peaks from a ledger that recorded a step. `saved_name` is AttentionPlan::saved_name.
StepMemory step_memory(const MemoryLedger& ledger, const char* saved_name);

// One sequence through a training step, with one kind of attention.
struct MemoryRow {
  enum class Outcome {
    kRan,
    kDoesNotFit,  // according to the plan; it was not tried
    kRanOut,      // it ran out of memory, although it fits according to the plan
  };
  AttentionKind attention;
  int64_t tokens;  // N: the tokens of the sequence
  StepMemory planned;
  int64_t available = 0;  // bytes before the run; 0: not known
  Outcome outcome = Outcome::kRan;
  StepMemory measured = {};  // zeros unless it ran; the same holds for the time
  double step_ms = 0;        // median
};

// Error: the step needed other memory than planned.
void check_as_planned(const MemoryRow& row);

// The longest sequence that fits, according to the plan, in multiples of kContextStep tokens. The memory is
// what is available after all rows.
struct LargestSequence {
  AttentionKind attention;
  int64_t tokens = 0;  // 0: not even kContextStep
  int64_t available = 0;
};

struct MemoryResults {
  std::string device, precision, recompute;
  int64_t layers = 0, heads = 0, channels = 0, classifier_chunk = 0;
  bool deterministic = true;
  int64_t steps = 0;                          // timed steps for each row
  std::vector<MemoryRow> rows = {};           // in ascending order of tokens
  std::vector<LargestSequence> largest = {};  // one for each kind; empty if no limit is known

  std::vector<AttentionKind> kinds() const;  // the kinds that have rows, in their order
};

// How `of` grows with N over the rows of a kind that ran. Nothing if fewer than two rows ran.
std::optional<PowerFit> fit_memory(const MemoryResults& results, AttentionKind kind, int64_t StepMemory::*of);

std::string memory_table_head(const MemoryResults& results);
std::string memory_table_line(const MemoryRow& row);
std::string memory_summary(const MemoryResults& results);  // the fits, and the largest sequences
nlohmann::ordered_json to_json(const MemoryResults& results);
// Bytes against N on logarithmic scales: the memory that attention saves, and the peak of the step. There is
// one line for each kind. It has the slope of its fit, if that is a power of N, and a mark where it runs out
// of memory.
std::string to_svg(const MemoryResults& results);

}  // namespace tessera

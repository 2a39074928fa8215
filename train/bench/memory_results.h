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
  int64_t step = 0;       // of all that is allocated
  int64_t attention = 0;  // of the attention tag: what is saved, and scratch
  int64_t saved = 0;      // of what attention keeps from the forward to the backward, over all blocks
  bool operator==(const StepMemory&) const = default;
};

// Read from a ledger that recorded a step; `saved_name` is AttentionPlan::saved_name.
StepMemory step_memory(const MemoryLedger& ledger, const char* saved_name);

// One sequence through a training step, with one kind of attention.
struct MemoryRow {
  enum class Outcome {
    kRan,
    kDoesNotFit,  // by plan; it was not tried
    kRanOut,      // of memory, though it fits by plan
  };
  AttentionKind attention;
  int64_t tokens;  // N, of the sequence
  StepMemory planned;
  int64_t available = 0;  // bytes before the run; 0: not known
  Outcome outcome = Outcome::kRan;
  StepMemory measured = {};  // zeros unless it ran; so is the time
  double step_ms = 0;        // median
};

// Error: the step needed other memory than planned.
void check_as_planned(const MemoryRow& row);

// By plan, in multiples of kContextStep tokens, for the memory that is available after all rows.
struct LargestSequence {
  AttentionKind attention;
  int64_t tokens = 0;  // 0: not even kContextStep
  int64_t available = 0;
};

struct MemoryResults {
  std::string device, precision, recompute;
  int64_t layers = 0, heads = 0, channels = 0, classifier_chunk = 0;
  bool deterministic = true;
  int64_t steps = 0;                          // that were timed for a row
  std::vector<MemoryRow> rows = {};           // in ascending order of tokens
  std::vector<LargestSequence> largest = {};  // one for each kind; none where no limit is known

  std::vector<AttentionKind> kinds() const;  // that have rows, in their order
};

// How `of` grows with N over the rows of a kind that ran. None with fewer than two of them.
std::optional<PowerFit> fit_memory(const MemoryResults& results, AttentionKind kind, int64_t StepMemory::*of);

std::string memory_table_head(const MemoryResults& results);
std::string memory_table_line(const MemoryRow& row);
std::string memory_summary(const MemoryResults& results);  // the fits, and the largest sequences
nlohmann::ordered_json to_json(const MemoryResults& results);
// Bytes against N on logarithmic scales: the memory that attention saves, and the peak of the step. One line
// for each kind, with the slope of its fit if it is a power of N, and a mark where it runs out of memory.
std::string to_svg(const MemoryResults& results);

}  // namespace tessera

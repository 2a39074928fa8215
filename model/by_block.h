// ByBlock: a value for each block of a model, as runs of blocks: "linear*20,none".
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/check.h"

namespace tessera {

template <class V>
class ByBlock {
 public:
  struct Run {
    V value;
    int64_t blocks = kRest;  // how many; at least 1
    bool operator==(const Run&) const = default;
  };
  static constexpr int64_t kRest = 0;  // all blocks that remain; only for the last run

  ByBlock(V all = {}) : runs_{{std::move(all)}} {}
  // Neighbouring runs of equal values become one. Error: there is no run, or kRest before the last run.
  explicit ByBlock(const std::vector<Run>& runs) {
    check(!runs.empty(), "a value for each block needs at least one run");
    for (const Run& run : runs) {
      check(runs_.empty() || runs_.back().blocks != kRest, "only the last run may have all that remain");
      if (runs_.empty() || runs_.back().value != run.value)
        runs_.push_back(run);
      else
        runs_.back().blocks = run.blocks == kRest ? kRest : runs_.back().blocks + run.blocks;
    }
  }

  const std::vector<Run>& runs() const { return runs_; }  // neighbours differ
  // Blocks after the last run have its value.
  const V& at(size_t layer) const {
    auto left = static_cast<int64_t>(layer);
    for (const Run& run : runs_) {
      if (run.blocks == kRest || left < run.blocks) return run.value;
      left -= run.blocks;
    }
    return runs_.back().value;
  }
  int64_t counted() const {  // the number of blocks of the runs that have a number
    int64_t sum = 0;
    for (const Run& run : runs_) sum += run.blocks;
    return sum;
  }
  bool has_rest() const { return runs_.back().blocks == kRest; }
  bool any_of(const auto& holds) const {
    return std::ranges::any_of(runs_, [&](const Run& run) { return holds(run.value); });
  }
  bool all_of(const auto& holds) const {
    return std::ranges::all_of(runs_, [&](const Run& run) { return holds(run.value); });
  }
  ByBlock changed(const auto& change) const {  // change(value) changes each
    std::vector<Run> runs = runs_;
    for (Run& run : runs) change(run.value);
    return ByBlock(runs);
  }
  bool operator==(const ByBlock&) const = default;
  friend bool operator==(const ByBlock& all, const V& value) { return all == ByBlock(value); }

 private:
  std::vector<Run> runs_;
};

// "linear*20,none": for each run text_of() of its value, and its number of blocks
template <class V>
std::string text_of(const ByBlock<V>& values) {
  std::string text;
  for (const auto& [value, blocks] : values.runs()) {
    text += (text.empty() ? "" : ",") + text_of(value);
    if (blocks != ByBlock<V>::kRest) text += "*" + std::to_string(blocks);
  }
  return text;
}

}  // namespace tessera

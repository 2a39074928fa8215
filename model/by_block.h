// ByBlock: a value for each block of a model, as runs of blocks from the first one on: "linear*20,none".
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
  static constexpr int64_t kRest = 0;  // all blocks that remain: of the last run alone

  ByBlock(V all = {}) : runs_{{std::move(all)}} {}
  // Runs of equal values become one. Without runs, or with kRest before the last one: an Error.
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
  // Blocks beyond all runs have the value of the last one.
  const V& at(size_t layer) const {
    auto left = static_cast<int64_t>(layer);
    for (const Run& run : runs_) {
      if (run.blocks == kRest || left < run.blocks) return run.value;
      left -= run.blocks;
    }
    return runs_.back().value;
  }
  int64_t counted() const {  // the blocks of the runs that say how many they have
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

// "linear*20,none": what text_of() writes of each value, with the blocks that have it
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

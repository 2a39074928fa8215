// MemoryRecording: every allocation and release, and the phases of the work around them.
//
// A ledger has one after record(); reports are pure functions of it. Allocations and releases ("births and
// deaths" in the files) are numbered together from 0 in their order, which is exact on every device. Times
// are those of the host, which runs ahead of a GPU.
//
// The recording is bounded. If a phase repeats (a step, a micro-batch), only the first kFirstFew within the
// surrounding phase are recorded, numbered from 1 if they have no number; a single phase "not recorded"
// stands for the repetitions that follow. The recording stops after kMostAllocations or kMostPhases.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/memory_tag.h"

namespace tessera {

class MemoryRecording {
 public:
  static constexpr int kFirstFew = 2;
  static constexpr size_t kMostAllocations = 100'000, kMostPhases = 50'000;
  static constexpr int kNone = -1;  // no phase; no number; not yet

  struct Moment {
    int64_t order = kNone;        // the number of a birth or death; for a phase the number of the next one
    int64_t nanoseconds = kNone;  // since the recording began
  };
  struct Phase {
    const char* name;
    int64_t number;  // kNone: the phase has none
    int parent;      // the phase around it, or kNone
    Moment begin;
    Moment end = {};       // kNone: it had not ended
    bool skipped = false;  // stands for a run of repetitions that were not recorded
  };
  struct Allocation {
    MemoryTag tag;
    std::string name;
    int64_t bytes;
    int phase;  // in which it was made, or kNone
    Moment born;
    Moment died = {};  // kNone: alive at the end
  };

  void born(MemoryTag tag, std::string_view name, int64_t bytes);
  void last_died();
  void begin_phase(const char* name, int64_t number, bool repeats);
  void end_phase();

  const std::vector<Phase>& phases() const { return phases_; }
  const std::vector<Allocation>& allocations() const { return allocations_; }
  int64_t births_and_deaths() const { return order_; }
  int64_t last_nanoseconds() const { return last_; }  // of the latest entry
  bool complete() const { return !full_; }            // false: a limit stopped the recording
  std::string path(int phase) const;                  // "step 1/micro-batch 1/forward/block 3"; "" of kNone

 private:
  using Clock = std::chrono::steady_clock;
  Moment now(int64_t order);
  void skip(int parent);  // begins a phase "not recorded"
  bool is_skipped() const { return !open_.empty() && open_.back() == kNone; }

  Clock::time_point start_ = Clock::now();
  std::vector<Phase> phases_;
  std::vector<Allocation> allocations_;
  std::vector<int> live_;                                        // indices; kNone: alive but not recorded
  std::vector<int> open_;                                        // phases; kNone: skipped
  std::map<std::pair<int, std::string_view>, int> repetitions_;  // by the phase around them and their name
  int64_t order_ = 0, last_ = 0;
  bool full_ = false;
};

}  // namespace tessera

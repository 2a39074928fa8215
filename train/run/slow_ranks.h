// Which ranks of a run are slower than the others, and how long these wait for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// The part of the slowest rank's time that the ranks wait for it, as a mean. `own`: the seconds of each rank
// in a step without what it waited for collectives
double wait_for_slowest(std::span<const double> own);

// A rank is slow if its own time is above kSlow times the median in kWindows windows of steps that follow one
// another. The median is the lower one: of two ranks the slower counts beside the faster.
class SlowRanks {
 public:
  static constexpr int64_t kSteps = 16;  // of a window
  static constexpr int64_t kWindows = 2;
  static constexpr double kSlow = 1.2;
  static constexpr double kLeastSeconds = 0.005;  // more than the median, in a step: less is noise

  struct Slow {
    int64_t rank;
    double seconds, median;  // own time of a step, means over the last window
  };
  // `own`: as above, of a step. Which ranks have been found slow by it; each is told once. The same at all
  // ranks.
  std::vector<Slow> add(std::span<const double> own);

 private:
  std::vector<double> sums_;      // of each rank in this window
  std::vector<int64_t> windows_;  // in which it was slow, up to the last one
  std::vector<bool> told_;
  int64_t steps_ = 0;
};

}  // namespace tessera

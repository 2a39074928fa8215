// The validation loss by position in the sequence; or by position in the document, if attention stays within
// documents. A token at a later position has more text before it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

// The positions, counted from 1, at which ranges end: 1, 2, 4, 8, ... below T, and T
std::vector<int64_t> position_ends(int64_t T);
// Adds up the losses at T positions by range
std::vector<double> sums_by_range(std::span<const double> by_position);

struct PositionLosses {
  int64_t step = 0;            // the step after which it was measured
  std::vector<int64_t> ends;   // of position_ends(); empty: not measured
  std::vector<double> losses;  // the mean of each range, in nats; NaN for a range without a token that counts
};
// `sums`: sums of losses; the other argument: how many tokens each is a sum over. Both are as sums_by_range()
// returns them.
PositionLosses position_losses(int64_t step, int64_t T, std::span<const double> sums,
                               std::span<const double> tokens);

// One line for each range, and whether the last range has a lower loss than the one before. `title`: "" for a
// run's own evaluation
std::string position_table(const PositionLosses& losses, const std::string& title = "");

}  // namespace tessera

// The validation loss by position in the sequence, or in the document where attention stays within
// documents: a token late in it has more text to go by.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

// Where ranges of positions end, counted from 1: 1, 2, 4, 8, ... below T, and T
std::vector<int64_t> position_ends(int64_t T);
// Sums of losses at T positions, by range
std::vector<double> sums_by_range(std::span<const double> by_position);

struct PositionLosses {
  int64_t step = 0;            // after which it was measured
  std::vector<int64_t> ends;   // of position_ends(); empty: not measured
  std::vector<double> losses;  // the mean of each range, nats; NaN where no token counts
};
// `sums` of the losses, and how many tokens each is a sum over, both by sums_by_range()
PositionLosses position_losses(int64_t step, int64_t T, std::span<const double> sums,
                               std::span<const double> tokens);

// A line a range, and whether the last one has a lower loss than the one before. `title`: "": of a run's
// evaluation
std::string position_table(const PositionLosses& losses, const std::string& title = "");

}  // namespace tessera

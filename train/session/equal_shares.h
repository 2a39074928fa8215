// Things of unequal work, shared out so that all takers work equally long.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// 0, 1, ... by falling work; equal ones in their order
std::vector<int64_t> by_falling(std::span<const double> work);

// For each of `takers` the things that it takes, as many as each has room for, with about equal sums of work:
// by falling work, each to the taker with the least so far that has room (longest processing time first:
// Graham, 1969).
std::vector<std::vector<int64_t>> equal_shares(std::span<const double> work, int64_t takers, int64_t room);

}  // namespace tessera

#include "train/session/equal_shares.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tessera {

std::vector<int64_t> by_falling(std::span<const double> work) {
  std::vector<int64_t> order(work.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int64_t i) { return work[static_cast<size_t>(i)]; });
  return order;
}

std::vector<std::vector<int64_t>> equal_shares(std::span<const double> work, int64_t takers, int64_t room) {
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(takers));
  std::vector<double> sums(shares.size());
  for (const int64_t i : by_falling(work)) {
    size_t least = shares.size();
    for (size_t taker = 0; taker < shares.size(); ++taker)
      if (std::ssize(shares[taker]) < room && (least == shares.size() || sums[taker] < sums[least]))
        least = taker;
    shares[least].push_back(i);
    sums[least] += work[static_cast<size_t>(i)];
  }
  return shares;
}

}  // namespace tessera

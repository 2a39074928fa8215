#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/base/check.h"

namespace tessera {
namespace {

constexpr int64_t kLongestBlock = 10'000;  // sequences

// A share of a block in sequences; a whole number if it is one but for rounding
double exact(double share, int64_t block) {
  const double count = share * static_cast<double>(block), whole = std::round(count);
  return std::abs(count - whole) < 1e-9 * count ? whole : count;
}

// Whole numbers whose sum is `block`, nearest to the shares: rounded down, then one more for those with the
// largest remainders
std::vector<int64_t> apportion(const std::vector<double>& shares, int64_t block) {
  std::vector<int64_t> counts(shares.size());
  std::vector<size_t> by_remainder(shares.size());
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  for (size_t i = 0; i < shares.size(); ++i) counts[i] = static_cast<int64_t>(exact(shares[i], block));
  std::ranges::stable_sort(by_remainder, std::greater(), [&](size_t i) {
    return exact(shares[i], block) - static_cast<double>(counts[i]);
  });
  int64_t missing = block - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t i = 0; missing > 0; ++i, --missing) ++counts[by_remainder[i]];
  return counts;
}

bool is_exact(const std::vector<double>& shares, int64_t block) {
  return std::ranges::all_of(
      shares, [&](double share) { return exact(share, block) == std::round(exact(share, block)); });
}

std::vector<int64_t> counts_of(const std::vector<Mixture::Part>& parts) {
  check(!parts.empty(), "a mixture needs at least one source");
  double sum = 0;
  for (const auto& part : parts) {
    check(std::isfinite(part.weight) && part.weight > 0, "the weight of a source must be above 0, found {}",
          part.weight);
    sum += part.weight;
  }
  std::vector<double> shares;
  for (const auto& part : parts) shares.push_back(part.weight / sum);
  int64_t block = 1;
  while (block < kLongestBlock && !is_exact(shares, block)) ++block;
  return apportion(shares, block);
}

}  // namespace

Mixture::Mixture(std::vector<Part> parts) : parts_(std::move(parts)), counts_(counts_of(parts_)) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    check(counts_[i] > 0,
          "a source with the weight {} has fewer than one of {} sequences: leave it out, or give "
          "it a larger weight",
          parts_[i].weight, kLongestBlock);
    sequences_per_epoch_ += parts_[i].source->sequences_per_epoch();
    for (int64_t k = 0; k < counts_[i]; ++k) block_.push_back({static_cast<int64_t>(i), k});
  }
  // (2 k + 1) / n, compared without a division
  std::ranges::stable_sort(block_, [&](const Place& a, const Place& b) {
    return (2 * a.position + 1) * counts_[static_cast<size_t>(b.part)] <
           (2 * b.position + 1) * counts_[static_cast<size_t>(a.part)];
  });
}

Mixture::Place Mixture::place(int64_t position) const {
  check(position >= 0, "a position in the data cannot be negative, found {}", position);
  const int64_t block = position / std::ssize(block_);
  const Place& place = block_[static_cast<size_t>(position % std::ssize(block_))];
  return {place.part, block * counts_[static_cast<size_t>(place.part)] + place.position};
}

std::vector<SequencePiece> Mixture::pieces(int64_t position) const {
  const auto [part, at] = place(position);
  return parts_[static_cast<size_t>(part)].source->pieces(at);
}

std::vector<int64_t> Mixture::document_lengths(int64_t position) const {
  const auto [part, at] = place(position);
  return parts_[static_cast<size_t>(part)].source->document_lengths(at);
}

void Mixture::fetch_at(std::span<const int64_t> positions, Sequences& out) const {
  clear(out);
  Sequences one;
  for (const int64_t position : positions) {
    const auto [part, at] = place(position);
    parts_[static_cast<size_t>(part)].source->fetch(at, 1, one);
    append(out, one);
  }
}

}  // namespace tessera

#include "train/report/thinned_curves.h"

#include <algorithm>
#include <cmath>

namespace tessera {

void ThinnedCurves::Value::add(const Value& other) {
  least = std::min(least, other.least);
  greatest = std::max(greatest, other.greatest);
  sum += other.sum;
  count += other.count;
}

void ThinnedCurves::add(const RunPlace& at, std::span<const double> values) {
  Bucket& bucket = buckets_[at.step / width_];
  if (bucket.values.empty()) bucket.values.resize(curves_);
  if (at.step >= bucket.last.step) bucket.last = at;
  for (size_t i = 0; i < curves_; ++i)
    if (std::isfinite(values[i]))
      bucket.values[i].add({.least = values[i], .greatest = values[i], .sum = values[i], .count = 1});
  while (buckets_.size() > most_buckets_) widen();
}

void ThinnedCurves::widen() {
  std::map<int64_t, Bucket> wider;
  for (auto& [index, bucket] : buckets_) {
    const auto [pair, is_new] = wider.try_emplace(index / 2, bucket);
    if (is_new) continue;
    pair->second.last = bucket.last;
    for (size_t i = 0; i < curves_; ++i) pair->second.values[i].add(bucket.values[i]);
  }
  buckets_ = std::move(wider);
  width_ *= 2;
}

}  // namespace tessera

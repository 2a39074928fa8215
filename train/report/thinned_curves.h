// Curves over the steps of a run, with a bounded number of points.
//
// Neighbouring steps share a bucket. A bucket stores the least value, the greatest value and the sum of the
// values of each curve, so no spike is lost and the mean is exact. When there are too many buckets,
// neighbours are merged in pairs.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <vector>

namespace tessera {

// A point of the three axes that a curve can be drawn over.
struct RunPlace {
  int64_t step = 0;
  double tokens = 0;   // tokens trained on since step 0
  double seconds = 0;  // of running time, over all processes of the run
};

class ThinnedCurves {
 public:
  static constexpr size_t kMostBuckets = 1000;  // each bucket gives two extremes, so a curve has at most
                                                // 2,000 points by default

  struct Value {
    double least = std::numeric_limits<double>::infinity();
    double greatest = -std::numeric_limits<double>::infinity();
    double sum = 0;
    int64_t count = 0;  // how many of the values are finite
    void add(const Value& other);
    double mean() const { return sum / static_cast<double>(count); }
  };
  struct Bucket {
    RunPlace last;              // of its last step
    std::vector<Value> values;  // one for each curve
  };

  explicit ThinnedCurves(size_t curves, size_t most_buckets = kMostBuckets)
      : curves_(curves), most_buckets_(most_buckets) {}
  size_t curves() const { return curves_; }
  // `values` has one value for each curve. A value that is not finite counts as absent. Steps may come in any
  // order.
  void add(const RunPlace& at, std::span<const double> values);

  int64_t width() const { return width_; }                               // steps of a bucket, a power of two
  const std::map<int64_t, Bucket>& buckets() const { return buckets_; }  // by step / width()

 private:
  void widen();

  size_t curves_, most_buckets_;
  int64_t width_ = 1;
  std::map<int64_t, Bucket> buckets_;
};

}  // namespace tessera

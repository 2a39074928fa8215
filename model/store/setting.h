// What the homes of a store (param_store.h) share.
#pragma once

#include <algorithm>

#include "kernels/communicator.h"
#include "kernels/stream.h"
#include "model/params.h"
#include "model/shards.h"

namespace tessera {

enum class LeaseFor : uint8_t {
  kInference,  // an evaluation or a sample: nothing is multiplied in FP8
  kForward,    // the forward of a training step
  kBackward,   // the backward of a training step
};

// One of `count` equal parts of the trained elements of a bucket
struct Part {
  int64_t index = 0, count = 1;
  Tensor of(const Tensor& bucket) const {
    const int64_t each = bucket.shape[0] / count;
    return bucket.rows(index * each, each);
  }
};

// The elements [first, end) of a parameter, and the slice of them that a rank has
struct ElementRange {
  int64_t first, end;
};
struct ParamSlice {
  int64_t first = 0;  // the slice's first element in the parameter
  Tensor own = {};    // none: the rank has no element
};
// The slice of `range` that `own` has. The first element of `own` is element `begins` of the bucket.
inline ParamSlice slice_of(const Tensor& own, int64_t begins, const ParamPlace& place, ElementRange range) {
  const int64_t first = std::max(place.first + range.first, begins),
                end = std::min(place.first + range.end, begins + own.shape[0]);
  if (first >= end) return {};
  return {.first = first - place.first, .own = own.rows(first - begins, end - first)};
}
inline ElementRange all_of(const ParamPlace& place) { return {0, place.info.shape.numel()}; }

struct StoreSetting {
  Stream stream;
  Arena& arena;  // of the device
  ModelConfig model;
  DType dtype;
  Shards shards;
  Communicator& axis;      // of the ranks that split the parameters
  Communicator* replicas;  // of the ranks that have the same part of them; null: no other rank has it
  ParamLayout layout;
  Part part;    // this rank's, of what is split
  bool trains;  // its weights, or others beside them: backwards read them

  // The positions of the parts of the model are their order in a forward: the tables, the blocks, the head
  int64_t position_of_head() const { return model.layers + 1; }
  size_t bucket_at(int64_t position) const {
    return position == position_of_head() ? layout.head : static_cast<size_t>(position);
  }
  bool sums_over_ranks() const { return axis.size() > 1 || replicas; }
  int64_t part_elements(size_t bucket) const { return layout.buckets[bucket].trained / part.count; }
};

// The parameter that has a value at an address in these buckets; null: none has. holds(bucket) says whether
// the bucket's memory has its values now.
template <class Holds>
const ParamPlace* place_at(const ParamLayout& layout, const std::vector<Tensor>& buckets, const void* address,
                           const Holds& holds) {
  const auto* byte = static_cast<const char*>(address);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const auto* first = buckets[b].as<char>();
    if (!first || byte < first || byte >= first + buckets[b].bytes() || !holds(b)) continue;
    const int64_t element = (byte - first) / static_cast<int64_t>(size_of(buckets[b].dtype));
    for (const ParamPlace& place : layout.places)
      if (place.bucket == b && place.first <= element && element < place.first + place.info.shape.numel())
        return &place;
  }
  return nullptr;
}

}  // namespace tessera

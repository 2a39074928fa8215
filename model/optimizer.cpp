#include "model/optimizer.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

Optimizer::Optimizer(Arena& arena, ParamStore& store, UpdateRule rule)
    : store_(store), rule_(std::move(rule)) {
  check(!rule_.whole_matrices || !store.shards().optimizer(),
        "{} updates whole matrices, and the optimizer is split over {} ranks, whose parts cut them: set "
        "parallel.shard=none",
        rule_.name, store.part().count);
  store.keep_masters();
  for (const StateTensor& one : rule_.state) store.keep(one.name, one.dtype);
  for (size_t b = 0; b < store.layout().buckets.size(); ++b)
    for (const StateTensor& one : rule_.state) state_.push_back(store.kept(one.name, b));
  grad_norms_ = arena.alloc(MemoryTag::kOptimizer, "gradient norm", DType::kF32, {store.part().count});
}

void Optimizer::measure(const Stream& stream) {
  const std::vector<Tensor> trained = store_.tensors_of_norm();
  stream.run(GlobalNorm{.tensors = trained, .norm = grad_norms_.rows(store_.part().index, 1)});
}

void Optimizer::share_norms() {
  if (!store_.shards().optimizer()) return;
  store_.axis().all_gather({.part = store_.part().of(grad_norms_), .whole = grad_norms_});
  store_.axis().wait();
}

void Optimizer::update(const Stream& stream, const Update& of) {
  store_.begin_update();
  const UpdateStep update = step_of(of);
  std::vector<UpdatedPart> parts;
  for (size_t b = 0; b < store_.layout().buckets.size(); ++b) {
    if (store_.layout().buckets[b].trained == 0) continue;
    parts.push_back(part_of(b, of.config));
    if (!store_.shards().optimizer()) continue;
    rule_.run(stream, parts, update);  // one by one: a bucket is gathered while the next is updated
    store_.end_update(b);
    parts.clear();
  }
  if (!parts.empty()) rule_.run(stream, parts, update);
}

void Optimizer::measure_update(const Stream& stream, const Update& of, const Tensor& sums) {
  check(rule_.measure != nullptr, "{} cannot tell what its update is about to do", rule_.name);
  const ParamLayout& layout = store_.layout();
  std::vector<UpdatedPart> parts;
  std::vector<size_t> part_of_bucket(layout.buckets.size());
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    if (layout.buckets[b].trained == 0) continue;
    part_of_bucket[b] = parts.size();
    parts.push_back(part_of(b, of.config));
  }
  std::vector<AdamWNorms::Range> ranges;
  for (const ParamPlace& place : layout.places) {
    if (!place.trained) continue;
    const size_t part = part_of_bucket[place.bucket];
    const int64_t each = parts[part].weights.shape[0], begins = store_.part().index * each,
                  first = std::clamp<int64_t>(place.first - begins, 0, each),
                  end = std::clamp<int64_t>(place.first + place.info.shape.numel() - begins, 0, each);
    ranges.push_back({.part = part, .first = first, .count = end - first});
  }
  rule_.measure(stream, parts, step_of(of), {.ranges = ranges, .sums = sums});
}

UpdateStep Optimizer::step_of(const Update& update) const {
  return {.config = update.config,
          .grad_norm = grad_norms_,
          .learning_rate = update.learning_rate,
          .number = update.number,
          .verdict = update.verdict};
}

UpdatedPart Optimizer::part_of(size_t bucket, const OptimizerConfig& config) const {
  const Tensor weights = store_.updated_weights(bucket);
  const ParamLayout& layout = store_.layout();
  const int64_t each = weights.shape[0], first = store_.part().index * each;
  // A head of its own is rounded at random as if it followed the tables in their bucket.
  const bool own_head = !layout.head_is_tied() && bucket == layout.head;
  const size_t kinds = rule_.state.size();
  return {.weights = weights,
          .low = weights.dtype == DType::kF32 ? Tensor{} : store_.kept(kMaster, bucket),
          .gradient = store_.summed_gradients()[bucket],
          .state = std::span(state_).subspan(bucket * kinds, kinds),
          .decayed = std::clamp<int64_t>(store_.layout().buckets[bucket].decayed - first, 0, each),
          .random_key = config.random_key + (own_head ? ParamLayout::kTables : bucket),
          .first_element = first + (own_head ? layout.buckets[ParamLayout::kTables].trained : 0)};
}

}  // namespace tessera

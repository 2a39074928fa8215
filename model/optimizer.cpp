#include "model/optimizer.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

Optimizer::Optimizer(Arena& arena, ParamStore& store, UpdateRule rule)
    : store_(store), rule_(std::move(rule)) {
  store.kept().keep_masters();
  for (const StateTensor& one : rule_.state) store.kept().keep(one);
  grad_norms_ = arena.alloc(MemoryTag::kOptimizer, "gradient norm", DType::kF32, {store.part().count});
  if (rule_.muon) muon_.emplace(arena, store, *rule_.muon);
}

void Optimizer::measure(const Stream& stream) {
  const std::vector<Tensor> trained = store_.gradient_home().tensors_of_norm();
  stream.run(GlobalNorm{.tensors = trained, .norm = grad_norms_.rows(store_.part().index, 1)});
}

void Optimizer::share_norms() {
  if (!store_.shards().optimizer()) return;
  store_.axis().all_gather({.part = store_.part().of(grad_norms_), .whole = grad_norms_});
  store_.axis().wait();
}

void Optimizer::update(const Stream& stream, const Update& of) {
  store_.weight_home().begin_update();
  if (of.norms) measure_update(stream, of);
  const UpdateStep step = step_of(of);
  std::vector<UpdatedPart> parts;
  const auto run = [&] {
    if (!parts.empty()) rule_.run(stream, parts, step);
    parts.clear();
  };
  const auto finish = [&](size_t bucket) {
    if (const UpdatedPart part = part_of(bucket, of.config, Elements::kOthers); part.weights.numel() > 0)
      parts.push_back(part);
    if (!store_.shards().optimizer()) return;
    run();  // one by one: a bucket is gathered while the next is updated
    store_.weight_home().end_update(bucket);
  };
  for (size_t b = 0; b < store_.layout().buckets.size(); ++b)
    if (store_.layout().buckets[b].trained > 0 && !(muon_ && muon_->updates(b))) finish(b);
  if (muon_)
    muon_->run({.stream = stream,
                .step = step,
                .part = [&](size_t bucket) { return part_of(bucket, of.config, Elements::kMatrices); },
                .done = finish,
                .norms = of.norms});
  run();
}

void Optimizer::measure_update(const Stream& stream, const Update& of) const {
  check(rule_.measure != nullptr, "{} cannot tell what its update is about to do", rule_.name);
  const ParamLayout& layout = store_.layout();
  std::vector<UpdatedPart> parts;
  std::vector<size_t> part_of_bucket(layout.buckets.size());
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    if (layout.buckets[b].trained == 0) continue;
    const UpdatedPart part = part_of(b, of.config, Elements::kOthers);
    if (part.weights.numel() == 0) continue;
    part_of_bucket[b] = parts.size();
    parts.push_back(part);
  }
  if (parts.empty()) return stream.run(FillZero{of.norms});
  std::vector<AdamWNorms::Range> ranges;
  for (const ParamPlace& place : layout.places) {
    if (!place.trained) continue;
    const int64_t each = store_.part_elements(place.bucket),
                  matrices = muon_ ? muon_->matrices_of(place.bucket) : 0;
    const auto [first, count] = place.within(store_.part().index * each + matrices, each - matrices);
    ranges.push_back({.part = part_of_bucket[place.bucket], .first = first, .count = count});
  }
  rule_.measure(stream, parts, step_of(of), {.ranges = ranges, .sums = of.norms});
}

UpdateStep Optimizer::step_of(const Update& update) const {
  return {.config = update.config,
          .grad_norm = grad_norms_,
          .learning_rate = update.learning_rate,
          .number = update.number,
          .verdict = update.verdict};
}

UpdatedPart Optimizer::part_of(size_t bucket, const OptimizerConfig& config, Elements which) const {
  const Tensor weights = store_.weight_home().updated(bucket);
  const ParamLayout& layout = store_.layout();
  const int64_t each = weights.shape[0], matrices = muon_ ? muon_->matrices_of(bucket) : 0,
                from = which == Elements::kMatrices ? 0 : matrices,
                end = which == Elements::kMatrices ? matrices : each,
                first = store_.part().index * each + from;
  // What is kept may be of the end of the part alone.
  const auto own = [&](const Tensor& all) {
    const int64_t missing = all ? each - all.numel() : 0;
    return all && from >= missing ? all.rows(from - missing, end - from) : Tensor{};
  };
  // A head of its own is rounded at random as if it followed the tables in their bucket.
  const bool own_head = !layout.head_is_tied() && bucket == layout.head;
  UpdatedPart part{.weights = own(weights),
                   .low = weights.dtype == DType::kF32 ? Tensor{} : own(store_.kept().of(kMaster, bucket)),
                   .gradient = own(store_.gradient_home().summed()[bucket]),
                   .state = {},
                   .decayed = std::clamp<int64_t>(layout.buckets[bucket].decayed - first, 0, end - from),
                   .random_key = config.random_key + (own_head ? ParamLayout::kTables : bucket),
                   .first_element = first + (own_head ? layout.buckets[ParamLayout::kTables].trained : 0)};
  for (const StateTensor& one : rule_.state)
    if (one.of != StateOf::kRows) part.state.push_back(own(store_.kept().of(one.name, bucket)));
  return part;
}

}  // namespace tessera

#include "model/optimizer.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/score_ops.h"

namespace tessera {

Optimizer::Optimizer(Arena& arena, ParamStore& store, UpdateRule rule)
    : store_(store), rule_(std::move(rule)) {
  store.kept().keep_masters();
  for (const StateTensor& one : rule_.state())
    store.kept().keep(one,
                      [this, name = one.name](const ParamInfo& info) { return rule_.keeps(name, info); });
  grad_norms_ = arena.alloc(MemoryTag::kOptimizer, "gradient norm", DType::kF32, {store.part().count});
  for (const ParamGroup& group : rule_.groups) {
    std::vector<Elements>& own = elements_.emplace_back();
    for (size_t b = 0; b < store.layout().buckets.size(); ++b) own.push_back(find_elements(b, group));
    if (!group.run) matrices_.push_back(group.whole_matrices(arena, store));
  }
  check(matrices_.size() <= 1, "two groups of {} need whole matrices", rule_.name);
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
  const ParamLayout& layout = store_.layout();
  store_.weight_home().begin_update();
  if (of.norms) measure_update(stream, of);
  const UpdateStep step = step_of(of);
  std::vector<std::vector<UpdatedPart>> parts(rule_.groups.size());
  const auto run = [&] {
    for (size_t g = 0; g < parts.size(); ++g) {
      if (!parts[g].empty()) rule_.groups[g].run(stream, parts[g], step);
      parts[g].clear();
    }
  };
  const auto finish = [&](size_t bucket) {
    for (size_t g = 0; g < parts.size(); ++g)
      if (rule_.groups[g].run && elements_[g][bucket].count() > 0)
        parts[g].push_back(part_of(bucket, of.config, g));
    if (!store_.shards().optimizer()) return;
    run();  // one by one: a bucket is gathered while the next is updated
    clip_heads(stream, of, bucket);
    store_.weight_home().end_update(bucket);
  };
  const auto has_matrices = [&](size_t bucket) {
    return std::ranges::any_of(matrices_, [&](const auto& one) { return one->updates(bucket); });
  };
  for (size_t b = 0; b < layout.buckets.size(); ++b)
    if (layout.buckets[b].trained > 0 && !has_matrices(b)) finish(b);
  const auto whole =
      static_cast<size_t>(std::ranges::find(rule_.groups, nullptr, &ParamGroup::run) - rule_.groups.begin());
  for (const auto& one : matrices_)
    one->run({.stream = stream,
              .step = step,
              .part = [&](size_t bucket) { return part_of(bucket, of.config, whole); },
              .done = finish,
              .norms = of.norms});
  run();
  for (size_t b = 0; !store_.shards().optimizer() && b < layout.buckets.size(); ++b)
    clip_heads(stream, of, b);
}

void Optimizer::clip_heads(const Stream& stream, const Update& of, size_t bucket) const {
  const Tensor weights = store_.weight_home().updated(bucket);
  if (!of.largest_scores || !weights) return;
  const int64_t begins = store_.part().index * store_.part_elements(bucket);
  for (const ParamPlace& place : store_.layout().places) {
    const std::optional<Linear>& linear = place.info.linear;
    if (place.bucket != bucket || !place.trained || !linear || std::string_view(linear->name) != kQkv)
      continue;
    const auto [first, count] = place.within(begins, weights.numel());
    if (count == 0) continue;
    const Tensor low = store_.dtype() == DType::kF32 ? Tensor{} : store_.kept().of(kMaster, bucket);
    const ModelConfig& model = store_.model();
    stream.run(ClipHeads{.param = weights.rows(first, count),
                         .low = low ? low.rows(first, count) : Tensor{},
                         .first_element = begins + first - place.first,
                         .columns = place.info.shape.numel() / linear->outputs(),
                         .head_dim = model.head_dim,
                         .kv_heads = model.kv_heads,
                         .largest = of.largest_scores,
                         .layer = place.info.block,
                         .most = of.most_score,
                         .grad_norm = grad_norms_,
                         .verdict = of.verdict});
  }
}

// Whole matrices are measured by what updates them, after this.
void Optimizer::measure_update(const Stream& stream, const Update& of) const {
  const ParamLayout& layout = store_.layout();
  stream.run(FillZero{of.norms});
  int64_t measured = 0;
  for (size_t g = 0; g < rule_.groups.size(); ++g) {
    const ParamGroup& group = rule_.groups[g];
    if (!group.run) continue;
    check(++measured == 1, "{} has several groups whose updates would be measured", rule_.name);
    check(group.measure != nullptr, "{} cannot tell what its update is about to do", rule_.name);
    std::vector<UpdatedPart> parts;
    std::vector<size_t> part_of_bucket(layout.buckets.size());
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      if (elements_[g][b].count() == 0) continue;
      part_of_bucket[b] = parts.size();
      parts.push_back(part_of(b, of.config, g));
    }
    if (parts.empty()) continue;
    std::vector<AdamWNorms::Range> ranges;
    for (const ParamPlace& place : layout.places) {
      if (!place.trained) continue;
      const Elements& own = elements_[g][place.bucket];
      const auto [first, count] = place.within(own.first, own.count());
      ranges.push_back({.part = part_of_bucket[place.bucket], .first = first, .count = count});
    }
    group.measure(stream, parts, step_of(of), {.ranges = ranges, .sums = of.norms});
  }
}

UpdateStep Optimizer::step_of(const Update& update) const {
  return {.config = update.config,
          .grad_norm = grad_norms_,
          .learning_rate = update.learning_rate,
          .number = update.number,
          .verdict = update.verdict};
}

Optimizer::Elements Optimizer::find_elements(size_t bucket, const ParamGroup& group) const {
  const int64_t each = store_.part_elements(bucket), begins = store_.part().index * each;
  int64_t first = store_.layout().buckets[bucket].trained, end = 0;
  for (const ParamPlace& place : store_.layout().places) {
    if (place.bucket != bucket || !place.trained || !group.has(place.info)) continue;
    first = std::min(first, place.first), end = std::max(end, place.first + padded(place.info.shape.numel()));
  }
  first = std::max(first, begins), end = std::min(end, begins + each);
  return first < end ? Elements{first, end} : Elements{};
}

UpdatedPart Optimizer::part_of(size_t bucket, const OptimizerConfig& config, size_t group) const {
  const ParamLayout& layout = store_.layout();
  const auto [first, end] = elements_[group][bucket];
  const int64_t part_ends = (store_.part().index + 1) * store_.part_elements(bucket);
  // Some tensors have only the last elements of the part.
  const auto own = [&, first = first, count = end - first](const Tensor& all) {
    return all ? all.rows(first - (part_ends - all.numel()), count) : Tensor{};
  };
  // A head of its own is rounded at random as if it followed the tables in their bucket.
  const bool own_head = !layout.head_is_tied() && bucket == layout.head;
  UpdatedPart part{.weights = own(store_.weight_home().updated(bucket)),
                   .low = store_.dtype() == DType::kF32 ? Tensor{} : own(store_.kept().of(kMaster, bucket)),
                   .gradient = own(store_.gradient_home().summed()[bucket]),
                   .state = {},
                   .decayed = std::clamp<int64_t>(layout.buckets[bucket].decayed - first, 0, end - first),
                   .random_key = config.random_key + (own_head ? ParamLayout::kTables : bucket),
                   .first_element = first + (own_head ? layout.buckets[ParamLayout::kTables].trained : 0)};
  for (const StateTensor& one : rule_.groups[group].state)
    if (!one.of_rows) part.state.push_back(own(store_.kept().of(one.name, bucket)));
  return part;
}

}  // namespace tessera

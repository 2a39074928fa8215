#include "model/optimizer.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

Optimizer::Optimizer(Arena& arena, const Params& weights, const Shape& shape)
    : shape_(shape), layout_(shape.model, shape.part.count, shape.freeze), weights_(weights) {
  check(!rule().whole_matrices || part().count == 1,
        "{} needs whole matrices, and the optimizer is split into {} parts, which cut them: set train.zero=0",
        rule().name, part().count);
  const auto take = [&](const std::string& name, DType dtype) {
    std::string words = name;  // "first moment block 3"
    std::ranges::replace(words, '_', ' ');
    return allocate_trained(arena, MemoryTag::kOptimizer, words, dtype, layout_, part().count);
  };
  if (weights.token_table.dtype != DType::kF32) {
    masters_ = take(kMaster, DType::kF32);
  } else {
    for (size_t b = 0; b < weights.buckets.size(); ++b)
      masters_.push_back(layout_.buckets[b].trained == 0 ? Tensor{}
                                                         : part().of(layout_.trained(weights.buckets, b)));
  }
  const size_t kinds = rule().state.size();
  state_.resize(layout_.buckets.size() * kinds);
  for (size_t i = 0; i < kinds; ++i) {
    const std::vector<Tensor> buckets = take(rule().state[i].name, rule().state[i].dtype);
    for (size_t b = 0; b < buckets.size(); ++b) state_[b * kinds + i] = buckets[b];
  }
  grad_norms_ = arena.alloc(MemoryTag::kOptimizer, "gradient norm", DType::kF32, {part().count});
}

void Optimizer::clear(const Stream& stream) {
  for (const std::string& name : names())
    for (size_t b = 0; b < layout_.buckets.size(); ++b)
      if (kept(name, b)) stream.run(FillZero{kept(name, b)});
}

ParamSink Optimizer::writer(const Stream& stream, const std::string& name) {
  return [this, stream, name](const ParamPlace& given, const Tensor& values) {
    const ParamPlace& place = layout_.places[given.index];
    if (!place.trained) return;
    const Slice slice = slice_of(place, values.numel(), name);
    if (!slice.kept) return;
    const Tensor given_rows = values.view({values.numel()}).rows(slice.first, slice.kept.shape[0]);
    if (given_rows.data != slice.kept.data) stream.run(Copy{given_rows, slice.kept});
    stream.synchronize();
  };
}

NormalSink Optimizer::normal_writer(const Stream& stream) {
  return [this, stream](const ParamPlace& given, const NormalValues& values) {
    const ParamPlace& place = layout_.places[given.index];
    if (!place.trained || weights_.token_table.dtype == DType::kF32) return;  // the masters are the weights
    const Slice slice = slice_of(place, values.count, kMaster);
    if (slice.kept) stream.run(values.to(slice.kept, slice.first));
  };
}

Optimizer::Slice Optimizer::slice_of(const ParamPlace& place, int64_t count, const std::string& name) const {
  const Tensor& mine = kept(name, place.bucket);
  const int64_t begins = part().index * mine.shape[0];  // this part, in the bucket
  const int64_t first = std::max(place.first, begins),
                end = std::min(place.first + count, begins + mine.shape[0]);
  if (first >= end) return {};
  return {.first = first - place.first, .kept = mine.rows(first - begins, end - first)};
}

void Optimizer::measure(const Stream& stream, std::span<const Tensor> gradients) {
  std::vector<Tensor> trained(gradients.begin(), gradients.end());
  std::erase_if(trained, [](const Tensor& bucket) { return !bucket; });
  stream.run(GlobalNorm{.tensors = trained, .norm = grad_norms_.rows(part().index, 1)});
}

void Optimizer::update(const Stream& stream, std::span<const size_t> buckets,
                       std::span<const Tensor> gradients, const OptimizerConfig& config, double learning_rate,
                       int64_t step) {
  std::vector<UpdatedPart> parts;
  for (const size_t bucket : buckets) {
    if (layout_.buckets[bucket].trained == 0) continue;
    const Tensor weights = part().of(layout_.trained(weights_.buckets, bucket));
    const int64_t each = weights.shape[0], first = part().index * each;
    const size_t kinds = rule().state.size();
    parts.push_back({.weights = weights,
                     .master = weights.dtype == DType::kF32 ? Tensor{} : masters_[bucket],
                     .gradient = gradients[bucket],
                     .state = std::span(state_).subspan(bucket * kinds, kinds),
                     .decayed = std::clamp<int64_t>(layout_.buckets[bucket].decayed - first, 0, each),
                     .random_key = config.random_key + bucket,
                     .first_element = first});
  }
  if (parts.empty()) return;
  rule().run(stream, parts,
             {.config = config, .grad_norm = grad_norms_, .learning_rate = learning_rate, .number = step});
}

std::vector<std::string> Optimizer::names() const {
  std::vector<std::string> names{kMaster};
  for (const StateTensor& one : rule().state) names.push_back(one.name);
  return names;
}

const Tensor& Optimizer::kept(const std::string& name, size_t bucket) const {
  if (name == kMaster) return masters_[bucket];
  const auto named = std::ranges::find(rule().state, name, &StateTensor::name);
  check(named != rule().state.end(), "{} keeps no \"{}\"", rule().name, name);
  return state_[bucket * rule().state.size() + static_cast<size_t>(named - rule().state.begin())];
}

Params Optimizer::masters() const {
  check(part().count == 1, "the masters are split into {} parts, and this optimizer has one of them",
        part().count);
  for (const ParamPlace& place : layout_.places)
    check(place.trained, "{} is frozen and has no master", place.info.name);
  return layout_.params(shape_.model, masters_);
}

}  // namespace tessera

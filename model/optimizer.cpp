#include "model/optimizer.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

Optimizer::Optimizer(Arena& arena, const ModelConfig& model, const Params& weights, DType moments, Part part,
                     const Freeze& freeze)
    : layout_(model, part.count, freeze), model_(model), weights_(weights), part_(part) {
  const auto take = [&](const char* kind, DType dtype) {
    return allocate_trained(arena, MemoryTag::kOptimizer, kind, dtype, layout_, part_.count);
  };
  if (weights.token_table.dtype != DType::kF32) {
    masters_ = take("master", DType::kF32);
  } else {
    for (size_t b = 0; b < weights.buckets.size(); ++b)
      masters_.push_back(layout_.buckets[b].trained == 0 ? Tensor{}
                                                         : part_.of(layout_.trained(weights.buckets, b)));
  }
  m_ = take("first moment", moments);
  v_ = take("second moment", moments);
  grad_norms_ = arena.alloc(MemoryTag::kOptimizer, "gradient norm", DType::kF32, {part_.count});
}

void Optimizer::clear(const Stream& stream) {
  for (const std::vector<Tensor>* all : {&masters_, &m_, &v_})
    for (const Tensor& bucket : *all)
      if (bucket) stream.run(FillZero{bucket});
}

ParamSink Optimizer::writer(const Stream& stream, Kept kept) {
  return [this, stream, kept](const ParamPlace& given, const Tensor& values) {
    const ParamPlace& place = layout_.places[given.index];
    if (!place.trained) return;
    const Slice slice = slice_of(place, values.numel(), kept);
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
    const Slice slice = slice_of(place, values.count, Kept::kMaster);
    if (slice.kept) stream.run(values.to(slice.kept, slice.first));
  };
}

Optimizer::Slice Optimizer::slice_of(const ParamPlace& place, int64_t count, Kept kept) const {
  const Tensor& mine = this->kept(kept)[place.bucket];
  const int64_t begins = part_.index * mine.shape[0];  // this part, in the bucket
  const int64_t first = std::max(place.first, begins),
                end = std::min(place.first + count, begins + mine.shape[0]);
  if (first >= end) return {};
  return {.first = first - place.first, .kept = mine.rows(first - begins, end - first)};
}

void Optimizer::measure(const Stream& stream, std::span<const Tensor> gradients) {
  std::vector<Tensor> trained(gradients.begin(), gradients.end());
  std::erase_if(trained, [](const Tensor& bucket) { return !bucket; });
  stream.run(GlobalNorm{.tensors = trained, .norm = grad_norms_.rows(part_.index, 1)});
}

void Optimizer::update(const Stream& stream, std::span<const size_t> buckets,
                       std::span<const Tensor> gradients, const OptimizerConfig& config, double learning_rate,
                       int64_t step) {
  AdamW adamw{.parts = {},
              .grad_norm = grad_norms_,
              .max_norm = config.max_grad_norm,
              .learning_rate = learning_rate,
              .beta1 = config.beta1,
              .beta2 = config.beta2,
              .epsilon = config.epsilon,
              .weight_decay = config.weight_decay,
              .step = step};
  for (const size_t bucket : buckets) {
    if (layout_.buckets[bucket].trained == 0) continue;
    const Tensor weights = part_.of(layout_.trained(weights_.buckets, bucket));
    const int64_t each = weights.shape[0], first = part_.index * each;
    adamw.parts.push_back({.param = weights,
                           .master = weights.dtype == DType::kF32 ? Tensor{} : masters_[bucket],
                           .grad = gradients[bucket],
                           .m = m_[bucket],
                           .v = v_[bucket],
                           .decayed = std::clamp<int64_t>(layout_.buckets[bucket].decayed - first, 0, each),
                           .random_key = config.random_key + bucket,
                           .first_element = first});
  }
  if (!adamw.parts.empty()) stream.run(adamw);
}

const std::vector<Tensor>& Optimizer::kept(Kept kept) const {
  return kept == Kept::kMaster ? masters_ : kept == Kept::kFirstMoment ? m_ : v_;
}

Params Optimizer::masters() const {
  check(part_.count == 1, "the masters are split into {} parts, and this optimizer has one of them",
        part_.count);
  for (const ParamPlace& place : layout_.places)
    check(place.trained, "{} is frozen and has no master", place.info.name);
  return layout_.params(model_, masters_);
}

}  // namespace tessera

#include "model/store/stored_forms.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/base/present.h"

namespace tessera {
namespace {

Tensor with_dtype(Tensor tensor, DType dtype) {
  tensor.dtype = dtype;
  return tensor;
}

// "blocks.1.mlp.expand", "head"
std::string layer_name(const ParamInfo& info) {
  return info.name == kTokenTable ? "head" : info.name.substr(0, info.name.rfind('.'));
}

}  // namespace

StoredForms::StoredForms(const StoreSetting& setting, Params& weights, Turns* turns, Arena& where)
    : setting_(setting), training_views_(weights), is_old_(setting.layout.buckets.size(), true) {
  const ParamLayout& layout = setting.layout;
  Arena& arena = setting.arena;
  const DType stored = fp8_storage(DType::kE4M3, arena.device());
  int64_t largest = 0;
  bool alone = false;
  for (const ParamBucket& bucket : layout.buckets) {
    own_.push_back(bucket.fp8 == 0 ? Tensor{}
                                   : where.alloc(MemoryTag::kWeights, "FP8 weights " + bucket.name, stored,
                                                 {bucket.fp8 / (turns ? setting.part.count : 1)}));
    if (own_.back()) setting.stream.run(FillZero{own_.back()});
    largest = std::max(largest, bucket.fp8), alone = alone || bucket.in_fp8 == InFp8::kAlone;
  }
  const auto count = std::ranges::count_if(
      layout.places, [](const ParamPlace& place) { return place.in_fp8 != InFp8::kNo; });
  if (count == 0) return;
  // Weights that are gathered in FP8 take the place of the others.
  if (turns && alone)
    turns_.emplace(arena, MemoryTag::kWeights, "gathered FP8 weights", stored, layout, &ParamBucket::fp8,
                   turns->size() - 1);
  else if (turns)
    turns_.emplace(*turns, stored, layout);
  if (largest > 0)
    other_ = arena.alloc(
        MemoryTag::kWeights,
        alone ? "FP8 weights of a block, transposed or as others" : "FP8 weights of a block, transposed",
        alone ? setting.dtype : stored, {largest});
  scales_ =
      arena.alloc(MemoryTag::kWeights, "FP8 scales of weights", DType::kF32, {1, count, kFp8ScaleStride});
  if (setting.shards.weights() && std::ranges::any_of(layout.buckets, [](const ParamBucket& bucket) {
        return bucket.in_fp8 == InFp8::kBeside;
      }))
    amaxes_ = arena.alloc(MemoryTag::kWeights, "FP8 largest elements of weights", DType::kF32,
                          {setting.part.count, 1, count});
  const Tensor scales = scales_.view({scales_.numel()}), as_stored = with_dtype(other_, stored);
  auto views = layout.places.begin();
  for_each_param(weights, setting.model, [&](const ParamInfo& info, Tensor& view) {
    const ParamPlace& place = *views++;
    if (place.in_fp8 == InFp8::kNo) return;
    StoredMatrix one{.place = place.index,
                     .how = place.in_fp8,
                     .layer = layer_name(info),
                     .values = {},
                     .transposed = {},
                     .plain = {}};
    one.values.scale = scales.rows(std::ssize(matrices_) * kFp8ScaleStride, 1);
    const Shape transposed{info.shape[1], info.shape[0]};
    if (place.in_fp8 == InFp8::kCopied) {
      one.values.data = arena.alloc(MemoryTag::kWeights, "FP8 " + one.layer, stored, info.shape);
      one.transposed =
          arena.alloc(MemoryTag::kWeights, "FP8 " + one.layer + ", transposed", stored, transposed);
    } else {
      one.values.data = layout.fp8_view((turns_ ? turns_->views() : own_)[place.bucket], place);
      one.transposed = layout.fp8_view(as_stored, place).view(transposed);
    }
    if (place.in_fp8 == InFp8::kAlone) view = layout.fp8_view(other_, place);
    one.plain = view;
    matrices_.push_back(one);
  });
  training_views_ = weights;
  allocate_vectors();
}

// A part's last elements are gathered, as many as there are vectors, or all: these are then the last ones of
// what was gathered.
void StoredForms::allocate_vectors() {
  const ParamLayout& layout = setting_.layout;
  vectors_.resize(layout.buckets.size());
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const ParamBucket& bucket = layout.buckets[b];
    if (!has_beside(b) || bucket.vectors() == 0) continue;
    const int64_t each = std::min(bucket.vectors(), setting_.part_elements(b));
    vectors_[b] = setting_.arena.alloc(MemoryTag::kWeights, "vectors of " + bucket.name, setting_.dtype,
                                       {setting_.part.count * each});
  }
  auto views = layout.places.begin();
  for_each_param(training_views_, setting_.model, [&](const ParamInfo& info, Tensor& view) {
    const ParamPlace& place = *views++;
    const Tensor& vectors = vectors_[place.bucket];
    if (vectors && !info.decay)
      view = vectors
                 .rows(vectors.numel() - (layout.buckets[place.bucket].trained - place.first),
                       info.shape.numel())
                 .view(info.shape);
  });
}

bool StoredForms::has_alone() const {
  return std::ranges::any_of(matrices_, [](const StoredMatrix& one) { return one.how == InFp8::kAlone; });
}

void StoredForms::make(size_t bucket, LeaseFor use, const std::vector<int64_t>& leases) {
  const InFp8 how = setting_.layout.buckets[bucket].in_fp8;
  const bool transposes = use == LeaseFor::kBackward && how != InFp8::kNo,
             widens = use == LeaseFor::kInference && how == InFp8::kAlone;
  if (!transposes && !widens) return;
  check(other_of_ == Turns::kNobody || leases[other_of_] == 0,
        "{} is asked for while {} is in use, whose buffer it needs", setting_.layout.buckets[bucket].name,
        other_of_ == Turns::kNobody ? "" : setting_.layout.buckets[other_of_].name);
  other_of_ = bucket;
  for (const StoredMatrix& one : matrices_) {
    if (setting_.layout.places[one.place].bucket != bucket || one.how == InFp8::kCopied) continue;
    if (transposes)
      setting_.stream.run(TransposeFp8{.x = one.values.data, .y = one.transposed});
    else
      setting_.stream.run(Dequantise{.x = one.values, .y = one.plain});
  }
}

void StoredForms::copy(size_t bucket) {
  if (!is_old_[bucket]) return;
  is_old_[bucket] = false;
  for (const StoredMatrix& one : matrices_)
    if (one.how == InFp8::kCopied && setting_.layout.places[one.place].bucket == bucket)
      setting_.stream.run(Quantise{.x = one.plain,
                                   .format = DType::kE4M3,
                                   .y = one.values,
                                   .transposed = one.transposed,
                                   .current = true});
}

void StoredForms::begin_step() {
  for (size_t b = 0; b < is_old_.size(); ++b)
    if (setting_.layout.buckets[b].trained > 0) is_old_[b] = true;
}

Tensor StoredForms::whole(const Params& weights, const ParamPlace& place) const {
  return place.in_fp8 == InFp8::kAlone ? setting_.layout.fp8_view(other_, place)
                                       : setting_.layout.view(weights.buckets, place);
}

void StoredForms::write(const ParamPlace& place, const std::function<void(const Tensor&)>& fill) {
  const StoredMatrix& one = *std::ranges::find(matrices_, place.index, &StoredMatrix::place);
  fill(one.plain);
  setting_.stream.run(Quantise{.x = one.plain, .format = DType::kE4M3, .y = one.values, .current = true});
  if (turns_) {
    const Tensor& own = own_[place.bucket];
    ParamPlace stored = place;
    stored.first = place.fp8_first;
    const Slice slice = slice_of(own, setting_.part.index * own.shape[0], stored, all_of(place));
    const Tensor values = one.values.data.view({place.info.shape.numel()});
    if (slice.own) setting_.stream.run(Copy{values.rows(slice.first, slice.own.shape[0]), slice.own});
  }
  setting_.stream.synchronize();
}

void StoredForms::round_whole(size_t bucket) {
  for (const StoredMatrix& one : matrices_)
    if (const ParamPlace& place = setting_.layout.places[one.place];
        place.bucket == bucket && one.how == InFp8::kBeside)
      setting_.stream.run(Quantise{.x = one.plain,
                                   .format = DType::kE4M3,
                                   .y = {setting_.layout.fp8_view(own_[bucket], place), one.values.scale},
                                   .current = true});
  if (const Tensor& vectors = vectors_[bucket]) {
    const int64_t first = setting_.layout.buckets[bucket].decayed;
    setting_.stream.run(Copy{training_views_.buckets[bucket].rows(first, vectors.numel()), vectors});
  }
}

void StoredForms::round_parts(const OwnWeights& own, WeightSource& source) {
  if (!amaxes_) return;
  const auto each_own = [&](const auto& use) {
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (matrices_[i].how != InFp8::kBeside) continue;
      const ParamPlace& place = setting_.layout.places[matrices_[i].place];
      const Slice slice = own.slice(place);
      if (slice.own) use(static_cast<int64_t>(i), place, slice.own.view({1, slice.own.numel()}));
    }
  };
  const Tensor amaxes = amaxes_.view({amaxes_.numel()}), own_amaxes = setting_.part.of(amaxes);
  setting_.stream.run(FillZero{amaxes});
  each_own([&](int64_t i, const ParamPlace&, const Tensor& values) {
    setting_.stream.run(Quantise{.x = values,
                                 .format = DType::kE4M3,
                                 .y = {.data = {}, .scale = matrices_[static_cast<size_t>(i)].values.scale},
                                 .amax = own_amaxes.rows(i, 1)});
  });
  setting_.axis.all_gather({.part = own_amaxes, .whole = amaxes});
  setting_.axis.wait();
  // Copies get their own scales with their next lease.
  setting_.stream.run(UpdateScales{.amax = amaxes_, .scale = scales_, .current = true});
  each_own([&](int64_t i, const ParamPlace& place, const Tensor& values) {
    const Tensor& mine = own_[place.bucket];
    const Slice to = slice_of(mine, setting_.part.index * mine.shape[0], place, all_of(place));
    setting_.stream.run(
        Quantise{.x = values,
                 .format = DType::kE4M3,
                 .y = {to.own.view(values.shape), matrices_[static_cast<size_t>(i)].values.scale}});
  });
  for (size_t b = 0; b < vectors_.size(); ++b)
    if (const Tensor& vectors = vectors_[b]) {
      const Tensor trained = own.trained(b);
      const int64_t each = vectors.numel() / setting_.part.count;
      source.start(trained.rows(trained.numel() - each, each), vectors);
    }
  source.wait_for(source.started());
}

}  // namespace tessera

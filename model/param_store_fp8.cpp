// What a ParamStore has in FP8: see param_store.h.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/base/present.h"
#include "model/param_store.h"

namespace tessera {
namespace {

Tensor with_dtype(Tensor tensor, DType dtype) {
  tensor.dtype = dtype;
  return tensor;
}

std::string layer_of_weight(const std::string& name) { return name.substr(0, name.rfind('.')); }

}  // namespace

void ParamStore::allocate_fp8() {
  training_weights_ = weights_;
  const DType stored = fp8_storage(DType::kE4M3, stream_.device());
  const int64_t parts = weight_turns_ ? shape_.shards.parts : 1;
  int64_t largest = 0;
  bool alone = false;
  for (const ParamBucket& bucket : layout_.buckets) {
    own_fp8_.push_back(bucket.fp8 == 0 ? Tensor{}
                                       : (shape_.host ? *shape_.host : arena_)
                                             .alloc(MemoryTag::kWeights, "FP8 weights " + bucket.name, stored,
                                                    {bucket.fp8 / parts}));
    if (own_fp8_.back()) stream_.run(FillZero{own_fp8_.back()});
    largest = std::max(largest, bucket.fp8), alone = alone || bucket.in_fp8 == InFp8::kAlone;
  }
  if (largest == 0) return;
  // Weights that are gathered in FP8 take the place of the others.
  if (weight_turns_ && alone)
    fp8_turns_.emplace(arena_, MemoryTag::kWeights, "gathered FP8 weights", stored, layout_,
                       &ParamBucket::fp8, weight_turns_->size() - 1);
  else if (weight_turns_)
    fp8_turns_.emplace(*weight_turns_, stored, layout_);
  other_form_ = arena_.alloc(
      MemoryTag::kWeights,
      alone ? "FP8 weights of a block, transposed or as others" : "FP8 weights of a block, transposed",
      alone ? shape_.dtype : stored, {largest});
  const auto count = std::ranges::count_if(
      layout_.places, [](const ParamPlace& place) { return place.in_fp8 != InFp8::kNo; });
  fp8_scales_ =
      arena_.alloc(MemoryTag::kWeights, "FP8 scales of weights", DType::kF32, {1, count, kFp8ScaleStride});
  const Tensor scales = fp8_scales_.view({fp8_scales_.numel()}), as_fp8 = with_dtype(other_form_, stored);
  auto views = layout_.places.begin();
  for_each_param(weights_, shape_.model, [&](const ParamInfo& info, Tensor& view) {
    const ParamPlace& place = *views++;
    if (place.in_fp8 == InFp8::kNo) return;
    const auto number = std::ssize(fp8_weights_);
    const Tensor& values = (fp8_turns_ ? fp8_turns_->views() : own_fp8_)[place.bucket];
    Tensor transposed = layout_.fp8_view(as_fp8, place);
    transposed.shape = {info.shape[1], info.shape[0]};
    if (place.in_fp8 == InFp8::kAlone) view = layout_.fp8_view(other_form_, place);
    fp8_weights_.push_back(
        {.place = place.index,
         .layer = layer_of_weight(info.name),
         .values = {layout_.fp8_view(values, place), scales.rows(number * kFp8ScaleStride, 1)},
         .transposed = transposed,
         .plain = view});
  });
  training_weights_ = weights_;
  allocate_fp8_vectors();
}

// A part's last elements are gathered, as many as there are vectors, or all: these are then the last ones of
// what was gathered.
void ParamStore::allocate_fp8_vectors() {
  fp8_vectors_.resize(layout_.buckets.size());
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    const ParamBucket& bucket = layout_.buckets[b];
    if (bucket.in_fp8 != InFp8::kBeside || bucket.vectors() == 0) continue;
    const int64_t parts = shape_.shards.parts, each = std::min(bucket.vectors(), bucket.trained / parts);
    fp8_vectors_[b] =
        arena_.alloc(MemoryTag::kWeights, "vectors of " + bucket.name, shape_.dtype, {parts * each});
  }
  auto views = layout_.places.begin();
  for_each_param(training_weights_, shape_.model, [&](const ParamInfo& info, Tensor& view) {
    const ParamPlace& place = *views++;
    const ParamBucket& bucket = layout_.buckets[place.bucket];
    const Tensor& vectors = fp8_vectors_[place.bucket];
    if (vectors && !info.decay)
      view =
          vectors.rows(vectors.numel() - (bucket.trained - place.first), info.shape.numel()).view(info.shape);
  });
}

void ParamStore::fetch_fp8(size_t bucket) {
  const Tensor& whole = present(fp8_turns_).views()[bucket];
  shape_.shards.weights() ? gather(own_fp8_[bucket], whole) : copy_from_host(own_fp8_[bucket], whole);
}

// The matrices of a part as a lease needs them: transposed, or frozen ones in the dtype of the others
void ParamStore::make_form(size_t bucket, LeaseFor use) {
  const InFp8 in_fp8 = layout_.buckets[bucket].in_fp8;
  const bool transposes = use == LeaseFor::kBackward && in_fp8 != InFp8::kNo,
             widens = use == LeaseFor::kInference && in_fp8 == InFp8::kAlone;
  if (!transposes && !widens) return;
  check(other_form_of_ == Turns::kNobody || leases_[other_form_of_] == 0,
        "{} is asked for while {} is in use, whose buffer it needs", layout_.buckets[bucket].name,
        other_form_of_ == Turns::kNobody ? "" : layout_.buckets[other_form_of_].name);
  other_form_of_ = bucket;
  for (const Fp8Weight& one : fp8_weights_) {
    if (layout_.places[one.place].bucket != bucket) continue;
    if (transposes)
      stream_.run(TransposeFp8{.x = one.values.data, .y = one.transposed});
    else
      stream_.run(Dequantise{.x = one.values, .y = one.plain});
  }
}

Tensor ParamStore::whole_weight(const ParamPlace& given) const {
  const ParamPlace& place = layout_.places[given.index];
  if (place.in_fp8 != InFp8::kAlone) return layout_.view(weights_.buckets, place);
  return layout_.fp8_view(other_form_, place);
}

// A frozen matrix: `fill` writes its values, and every rank has them all, so that all have the same scale.
void ParamStore::write_fp8(const ParamPlace& place, const std::function<void(const Tensor&)>& fill) {
  const auto found = std::ranges::find(fp8_weights_, place.index, &Fp8Weight::place);
  other_form_of_ = Turns::kNobody;
  fill(found->plain);
  stream_.run(Quantise{.x = found->plain, .format = DType::kE4M3, .y = found->values, .current = true});
  if (weight_turns_) {
    const Tensor& own = own_fp8_[place.bucket];
    ParamPlace in_fp8 = place;
    in_fp8.first = place.fp8_first;
    const int64_t count = place.info.shape.numel();
    const Slice slice = slice_of(own, part_.index * own.shape[0], in_fp8, {0, count});
    if (slice.own)
      stream_.run(Copy{found->values.data.view({count}).rows(slice.first, slice.own.shape[0]), slice.own});
  }
  stream_.synchronize();
}

// Trained weights that take turns, once a step
void ParamStore::round_trained_weights() {
  if (!weight_turns_ || fp8_weights_.empty()) return;
  wait_for_weights();  // a transfer of a step that was dropped may still read the values
  if (shape_.shards.weights()) return round_weights_of_ranks();
  const auto rounds = [&](size_t bucket) {
    return bucket < layout_.buckets.size() && layout_.buckets[bucket].in_fp8 == InFp8::kBeside;
  };
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    if (!rounds(b)) continue;
    fetch(b);
    if (rounds(b + 1)) fetch(b + 1);
    wait_for(weight_turns_->of(b));
    for (const Fp8Weight& one : fp8_weights_)
      if (const ParamPlace& place = layout_.places[one.place]; place.bucket == b)
        stream_.run(Quantise{.x = one.plain,
                             .format = DType::kE4M3,
                             .y = {layout_.fp8_view(own_fp8_[b], place), one.values.scale},
                             .current = true});
    if (const Tensor& vectors = fp8_vectors_[b])
      stream_.run(Copy{weight_turns_->views()[b].rows(layout_.buckets[b].decayed, vectors.numel()), vectors});
  }
}

// Each rank its part, by the largest element of all parts of a matrix: that is the scale, and these are the
// values, of the whole matrix.
void ParamStore::round_weights_of_ranks() {
  if (!fp8_amaxes_) return;  // all are frozen
  const auto each_own = [&](const auto& use) {
    for (size_t i = 0; i < fp8_weights_.size(); ++i) {
      const ParamPlace& place = layout_.places[fp8_weights_[i].place];
      if (place.in_fp8 != InFp8::kBeside) continue;
      const Slice slice = weight_slice(place, {0, place.info.shape.numel()});
      if (slice.own) use(static_cast<int64_t>(i), place, slice.own.view({1, slice.own.numel()}));
    }
  };
  const Tensor amaxes = fp8_amaxes_.view({fp8_amaxes_.numel()});
  const Tensor own_amaxes = part_.of(amaxes);
  stream_.run(FillZero{amaxes});
  each_own([&](int64_t i, const ParamPlace&, const Tensor& own) {
    stream_.run(Quantise{.x = own,
                         .format = DType::kE4M3,
                         .y = {.data = {}, .scale = fp8_weights_[static_cast<size_t>(i)].values.scale},
                         .amax = own_amaxes.rows(i, 1)});
  });
  axis().all_gather({.part = own_amaxes, .whole = amaxes});
  axis().wait();
  stream_.run(UpdateScales{.amax = fp8_amaxes_, .scale = fp8_scales_, .current = true});
  each_own([&](int64_t i, const ParamPlace& place, const Tensor& own) {
    const Tensor& mine = own_fp8_[place.bucket];
    const Slice to = slice_of(mine, part_.index * mine.shape[0], place, {0, place.info.shape.numel()});
    stream_.run(Quantise{.x = own,
                         .format = DType::kE4M3,
                         .y = {to.own.view(own.shape), fp8_weights_[static_cast<size_t>(i)].values.scale}});
  });
  for (size_t b = 0; b < layout_.buckets.size(); ++b)
    if (const Tensor& vectors = fp8_vectors_[b]) {
      const Tensor own = own_weights(b, /*trained=*/true);
      const int64_t each = vectors.numel() / part_.count;
      gather(own.rows(own.numel() - each, each), vectors);
    }
  axis().wait();
}

}  // namespace tessera

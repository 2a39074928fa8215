#include "model/param_store.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

ParamStore::ParamStore(const Stream& stream, Arena& arena, const Shape& shape)
    : stream_(stream),
      arena_(arena),
      shape_(shape),
      layout_(shape.model, shape.parts, shape.freeze),
      weights_(layout_.params(shape.model,
                              allocate_buckets(arena, MemoryTag::kWeights, "weights", shape.dtype, layout_))),
      alone_(make_plan_communicator(stream.device(), 0, 1)),
      axis_(alone_.get()),
      gathers_(layout_.buckets.size()),
      scopes_left_(layout_.buckets.size()) {
  for (const Tensor& bucket : weights_.buckets) stream_.run(FillZero{bucket});
}

void ParamStore::prepare_training(const Training& training) {
  if (training.axis) axis_ = training.axis;
  part_ = {.index = shape_.parts > 1 ? axis().rank() : 0, .count = shape_.parts};
  check(!is_split() || axis().size() == part_.count, "{} parts of the weights, and {} ranks to share them",
        part_.count, axis().size());
  fp8_.emplace(arena_, shape_.model, training.fp8);
  fp8_is_old_.assign(static_cast<size_t>(shape_.model.layers) + 1, true);

  const int64_t discarded = layout_.discarded_elements();
  const Tensor of_frozen_norms =
      discarded == 0 ? Tensor{}
                     : arena_.alloc(MemoryTag::kGradients, "gradients of frozen norms", dtype(), {discarded});
  const Placement whole{.dtype = dtype(), .where = &arena_};
  gradients_ =
      layout_.gradients(shape_.model, allocate(MemoryTag::kGradients, "gradients", whole), of_frozen_norms);
  const bool in_fp32 = axis().size() > 1 && training.reduce_in_fp32 && dtype() != DType::kF32;
  if (in_fp32 && is_split()) {
    summed_ = allocate(MemoryTag::kGradients, "summed gradients",
                       {.dtype = DType::kF32, .where = &arena_, .split = Split::kOverAxis});
  } else {
    for (const Tensor& bucket : gradients_.buckets) summed_.push_back(bucket ? part_.of(bucket) : Tensor{});
  }
  if (in_fp32) {
    int64_t largest = 0;
    for (const ParamBucket& bucket : layout_.buckets) largest = std::max(largest, bucket.trained);
    sums_ = arena_.alloc(MemoryTag::kCommunication, "sums of gradients", DType::kF32, {largest});
  }
  for (const Tensor& bucket : gradients_.buckets)
    if (bucket) stream_.run(FillZero{bucket});
}

std::vector<Tensor> ParamStore::allocate(MemoryTag tag, const std::string& name,
                                         const Placement& placement) const {
  return allocate_trained(*placement.where, tag, name, placement.dtype, layout_,
                          placement.split == Split::kOverAxis ? part_.count : 1);
}

WeightLease<TableParams> ParamStore::lease_tables() {
  wait_for(ParamLayout::kOutside);
  return {leases_, weights_};
}

WeightLease<BlockParams> ParamStore::lease_block(size_t layer, bool with_fp8) {
  wait_for(ParamLayout::bucket_of_block(static_cast<int64_t>(layer)));
  if (with_fp8) make_fp8(static_cast<int64_t>(layer));
  return {leases_, weights_.blocks[layer]};
}

WeightLease<HeadParams> ParamStore::lease_head(bool with_fp8) {
  wait_for(ParamLayout::kOutside);
  if (with_fp8) make_fp8(shape_.model.layers);
  return {leases_, weights_};
}

void ParamStore::wait_for(size_t bucket) {
  if (gathers_[bucket] > 0) axis().wait_for(std::exchange(gathers_[bucket], 0));
}

void ParamStore::make_fp8(int64_t layer) {
  const auto l = static_cast<size_t>(layer);
  if (!fp8_is_old_[l]) return;
  fp8_->quantise_weights(stream_, layer);
  fp8_is_old_[l] = false;
}

void ParamStore::begin_step() {
  fp8_is_old_.assign(fp8_is_old_.size(), true);
  // A micro-step may be run from a CUDA graph, which should not make them again each time.
  for (int64_t layer = 0; axis().size() == 1 && layer <= shape_.model.layers; ++layer) make_fp8(layer);
}

void ParamStore::begin_micro_step(bool last) {
  reduces_ = last && axis().size() > 1;
  std::ranges::fill(scopes_left_, 1);
  scopes_left_[ParamLayout::kOutside] = 2;  // the tables, and the head, which may be a table
}

GradientScope<TableParams> ParamStore::table_gradients() {
  begin_gradients(ParamLayout::kOutside);
  return {*this, ParamLayout::kOutside, gradients_};
}

GradientScope<BlockParams> ParamStore::block_gradients(size_t layer) {
  const size_t bucket = ParamLayout::bucket_of_block(static_cast<int64_t>(layer));
  begin_gradients(bucket);
  return {*this, bucket, gradients_.blocks[layer]};
}

GradientScope<HeadParams> ParamStore::head_gradients() {
  begin_gradients(ParamLayout::kOutside);
  return {*this, ParamLayout::kOutside, gradients_};
}

void ParamStore::begin_gradients(size_t bucket) {
  check(scopes_left_[bucket] > 0,
        "gradients of {} begin twice in a micro-step: begin_micro_step() comes first",
        layout_.buckets[bucket].name);
}

void ParamStore::end_gradients(size_t bucket) {
  if (--scopes_left_[bucket] == 0 && reduces_) reduce(bucket);
}

void ParamStore::reduce(size_t bucket) {
  const Tensor& whole = gradients_.buckets[bucket];
  if (!whole) return;
  const Tensor sums = sums_ ? sums_.rows(0, whole.numel()) : Tensor{};
  if (is_split()) {
    axis().reduce_scatter_sum({.whole = whole, .part = summed_[bucket], .sums = sums});
  } else {
    axis().all_reduce_sum({.tensor = whole, .sums = sums});
  }
}

void ParamStore::keep_masters() {
  if (dtype() != DType::kF32) return keep(kMaster, DType::kF32);
  Kept masters{.name = kMaster, .buckets = {}};
  for (size_t b = 0; b < layout_.buckets.size(); ++b) masters.buckets.push_back(updated_weights(b));
  kept_.push_back(std::move(masters));
}

void ParamStore::keep(const std::string& name, DType dtype) {
  std::string words = name;  // "first moment block 3"
  std::ranges::replace(words, '_', ' ');
  kept_.push_back({.name = name,
                   .buckets = allocate(MemoryTag::kOptimizer, words,
                                       {.dtype = dtype, .where = &arena_, .split = Split::kOverAxis})});
}

std::vector<std::string> ParamStore::kept_names() const {
  std::vector<std::string> names;
  for (const Kept& one : kept_) names.push_back(one.name);
  return names;
}

const Tensor& ParamStore::kept(const std::string& name, size_t bucket) const {
  const auto found = std::ranges::find(kept_, name, &Kept::name);
  check(found != kept_.end(), "the optimizer keeps no \"{}\"", name);
  return found->buckets[bucket];
}

void ParamStore::clear_kept() {
  for (const Kept& one : kept_)
    for (const Tensor& bucket : one.buckets)
      if (bucket) stream_.run(FillZero{bucket});
}

Tensor ParamStore::updated_weights(size_t bucket) const {
  return layout_.buckets[bucket].trained == 0 ? Tensor{}
                                              : part_.of(layout_.trained(weights_.buckets, bucket));
}

void ParamStore::begin_update() const {
  check(leases_ == 0,
        "the optimizer updates weights, and {} leases of them live: a forward or a decoder has to end first",
        leases_);
}

void ParamStore::gather(size_t bucket) {
  if (!is_split() || layout_.buckets[bucket].trained == 0) return;
  axis().all_gather({.part = updated_weights(bucket), .whole = layout_.trained(weights_.buckets, bucket)});
  gathers_[bucket] = axis().started();
}

ParamStore::Slice ParamStore::slice_of(const std::string& name, const ParamPlace& place,
                                       int64_t count) const {
  const Tensor& mine = kept(name, place.bucket);
  const int64_t begins = part_.index * mine.shape[0];  // this part, in the bucket
  const int64_t first = std::max(place.first, begins),
                end = std::min(place.first + count, begins + mine.shape[0]);
  if (first >= end) return {};
  return {.first = first - place.first, .kept = mine.rows(first - begins, end - first)};
}

void ParamStore::write(const std::string& name, const ParamPlace& given, const Tensor& values) {
  const ParamPlace& place = layout_.places[given.index];
  if (!place.trained) return;
  const Slice slice = slice_of(name, place, values.numel());
  if (!slice.kept) return;
  stream_.run(Copy{values.view({values.numel()}).rows(slice.first, slice.kept.shape[0]), slice.kept});
  stream_.synchronize();
}

ParamSink ParamStore::writer(const std::string& name) {
  if (name != kMaster)
    return [this, name](const ParamPlace& place, const Tensor& values) { write(name, place, values); };
  return [this](const ParamPlace& place, const Tensor& values) {
    const Tensor own = weight(place);
    stream_.run(Copy{values, own});
    stream_.synchronize();
    // Values that need no rounding are on the device by now.
    if (has_masters()) write(kMaster, place, values.dtype == dtype() ? own : values);
  };
}

NormalSink ParamStore::normal_writer() {
  return [this](const ParamPlace& given, const NormalValues& values) {
    const Tensor all = weight(given), flat = all.view({all.numel()});
    stream_.run(values.to(flat.rows(0, values.count)));
    if (values.count < flat.shape[0])
      stream_.run(FillZero{flat.rows(values.count, flat.shape[0] - values.count)});
    const ParamPlace& place = layout_.places[given.index];
    if (!has_masters() || !place.trained) return;
    const Slice slice = slice_of(kMaster, place, values.count);
    if (slice.kept) stream_.run(values.to(slice.kept, slice.first));
  };
}

void ParamStore::with_whole(const std::string& name, size_t bucket,
                            const std::function<void(const Tensor&)>& use) {
  const Tensor& mine = kept(name, bucket);
  axis().wait();
  if (!mine || !is_split()) return use(mine);
  if (name == kMaster && dtype() == DType::kF32) return use(layout_.trained(weights_.buckets, bucket));
  Arena::Scope scope(arena_);
  const Tensor whole = arena_.alloc(MemoryTag::kCommunication, "gathered from all ranks", mine.dtype,
                                    {mine.numel() * part_.count});
  axis().all_gather({.part = mine, .whole = whole});
  axis().wait();
  use(whole);
}

const Params& ParamStore::weights() {
  axis().wait();
  return weights_;
}

Tensor ParamStore::weight(const ParamPlace& place) {
  return layout_.view(weights().buckets, layout_.places[place.index]);
}

Params ParamStore::masters() const {
  check(!is_split(), "the masters are split into {} parts, and this rank has one of them", part_.count);
  for (const ParamPlace& place : layout_.places)
    check(place.trained, "{} is frozen and has no master", place.info.name);
  std::vector<Tensor> buckets;
  for (size_t b = 0; b < layout_.buckets.size(); ++b) buckets.push_back(kept(kMaster, b));
  return layout_.params(shape_.model, std::move(buckets));
}

}  // namespace tessera

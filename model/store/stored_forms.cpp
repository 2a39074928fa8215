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

StoredShape stored_shape(const ParamInfo& info, const LoraConfig& lora) {
  return {.shape = info.shape, .rows = stored_rows(info, lora)};
}

// "blocks.1.mlp.expand", "head"
std::string layer_name(const ParamInfo& info) {
  return info.name == kTokenTable ? "head" : info.name.substr(0, info.name.rfind('.'));
}

}  // namespace

LayerParts stored_rows(const ParamInfo& info, const LoraConfig& lora) {
  return info.linear && !info.linear->of_experts() ? adapter_rows(lora, *info.linear)
                                                   : LayerParts{info.shape.numel() / info.shape[-1]};
}

StoredForms::StoredForms(const StoreSetting& setting, Params& weights, Turns* turns, Arena& where,
                         const StoredFormat& format)
    : setting_(setting),
      format_(format),
      training_views_(weights),
      is_old_(setting.layout.buckets.size(), true) {
  const ParamLayout& layout = setting.layout;
  const DType unit = format_.unit(setting.arena.device());
  const auto units = [&](const ParamBucket& bucket) { return format_.units(bucket.stored_elements); };
  const std::string name = format_.name();
  for (const ParamBucket& bucket : layout.buckets) {
    own_.push_back(bucket.stored_elements == 0
                       ? Tensor{}
                       : where.alloc(MemoryTag::kWeights, name + " weights " + bucket.name, unit,
                                     {units(bucket) / (turns ? setting.part.count : 1)}));
    if (own_.back()) setting.stream.run(FillZero{own_.back()});
  }
  if (std::ranges::all_of(layout.places,
                          [](const ParamPlace& place) { return place.stored == StoredAs::kNo; }))
    return;
  const bool only = std::ranges::any_of(
      layout.buckets, [](const ParamBucket& bucket) { return bucket.stored == StoredAs::kOnly; });
  // Weights that are gathered in a stored form take the place of the others.
  if (turns && only)
    turns_.emplace(setting.arena, MemoryTag::kWeights, "gathered " + name + " weights", unit, layout, units,
                   turns->size() - 1);
  else if (turns)
    turns_.emplace(*turns, unit, layout, units);
  allocate_buffer();
  allocate_values(weights);
  training_views_ = weights;
  allocate_vectors();
}

void StoredForms::allocate_buffer() {
  bool only = false;
  int64_t largest = 0;
  for (const ParamBucket& bucket : setting_.layout.buckets) {
    largest = std::max(largest, bucket.stored_elements);
    only = only || bucket.stored == StoredAs::kOnly;
  }
  if (largest > 0)
    buffer_ = setting_.arena.alloc(
        MemoryTag::kWeights,
        fmt::format("{} weights of a block, transposed{}", format_.name(), only ? " or as others" : ""),
        only ? setting_.dtype : format_.unit(setting_.arena.device()), {largest});
}

void StoredForms::allocate_values(Params& weights) {
  const ParamLayout& layout = setting_.layout;
  Arena& arena = setting_.arena;
  int64_t count = 0, scales = 0;
  for (const ParamPlace& place : layout.places)
    if (place.stored != StoredAs::kNo)
      ++count, scales += format_.scales_of(stored_shape(place.info, setting_.model.lora));
  const std::string name = format_.name();
  scales_ = arena.alloc(MemoryTag::kWeights, name + " scales of weights", DType::kF32, {scales});
  if (setting_.shards.weights() && std::ranges::any_of(layout.buckets, [](const ParamBucket& bucket) {
        return bucket.stored == StoredAs::kBeside;
      }))
    amaxes_ = arena.alloc(MemoryTag::kWeights, name + " largest elements of weights", DType::kF32,
                          {setting_.part.count, 1, count});
  const DType unit = format_.unit(arena.device());
  const Tensor as_stored = with_dtype(buffer_, unit);
  int64_t first_scale = 0;
  auto views = layout.places.begin();
  for_each_param(weights, setting_.model, setting_.layout.kinds, [&](const ParamInfo& info, Tensor& view) {
    const ParamPlace& place = *views++;
    if (place.stored == StoredAs::kNo) return;
    format_.check_matrix(info.name, info.shape);
    const StoredShape matrix = stored_shape(info, setting_.model.lora);
    const int64_t own_scales = format_.scales_of(matrix);
    StoredMatrix one{
        .place = place.index,
        .how = place.stored,
        .layer = layer_name(info),
        .values = {.data = {}, .scales = scales_.rows(first_scale, own_scales), .rows = matrix.rows},
        .transposed = {},
        .plain = {}};
    first_scale += own_scales;
    const Shape transposed = transposed_shape(info.shape);
    if (place.stored == StoredAs::kCopied) {
      one.values.data = arena.alloc(MemoryTag::kWeights, name + " " + one.layer, unit, info.shape);
      if (setting_.trains)
        one.transposed =
            arena.alloc(MemoryTag::kWeights, name + " " + one.layer + ", transposed", unit, transposed);
    } else {
      one.values.data = stored_view((turns_ ? turns_->views() : own_)[place.bucket], place);
      if (format_.is_multiplied()) one.transposed = stored_view(as_stored, place).view(transposed);
    }
    if (place.stored == StoredAs::kOnly) view = widened_view(place);
    one.plain = view;
    matrices_.push_back(one);
  });
}

Tensor StoredForms::stored_view(const Tensor& all, const ParamPlace& place) const {
  const int64_t elements = place.info.shape.numel(), units = format_.units(elements);
  const Tensor values = all.rows(format_.units(place.stored_first), units);
  return units == elements ? values.view(place.info.shape) : values;
}

// A part's last elements are gathered, as many as there are vectors, or all: these are then the last ones of
// what was gathered.
void StoredForms::allocate_vectors() {
  const ParamLayout& layout = setting_.layout;
  vectors_.resize(layout.buckets.size());
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const ParamBucket& bucket = layout.buckets[b];
    if (!has_beside(b) || bucket.not_matrices() == 0) continue;
    const int64_t each = std::min(bucket.not_matrices(), setting_.part_elements(b));
    vectors_[b] = setting_.arena.alloc(MemoryTag::kWeights, "vectors of " + bucket.name, setting_.dtype,
                                       {setting_.part.count * each});
  }
  auto views = layout.places.begin();
  for_each_param(training_views_, setting_.model, setting_.layout.kinds,
                 [&](const ParamInfo& info, Tensor& view) {
                   const ParamPlace& place = *views++;
                   const Tensor& vectors = vectors_[place.bucket];
                   if (vectors && place.stored == StoredAs::kNo)
                     view = vectors
                                .rows(vectors.numel() - (layout.buckets[place.bucket].trained - place.first),
                                      info.shape.numel())
                                .view(info.shape);
                 });
}

bool StoredForms::has_only() const {
  return std::ranges::any_of(matrices_, [](const StoredMatrix& one) { return one.how == StoredAs::kOnly; });
}

void StoredForms::make(size_t bucket, LeaseFor use, const std::vector<int64_t>& leases) {
  const StoredAs how = setting_.layout.buckets[bucket].stored;
  const bool inference = use == LeaseFor::kInference || !format_.is_multiplied(),
             transposes = use == LeaseFor::kBackward && !inference && how != StoredAs::kNo,
             widens = inference && how == StoredAs::kOnly;
  if (!transposes && !widens) return;
  check_not_leased(setting_.layout, {.tenant = buffer_of_, .needed_by = bucket}, leases);
  buffer_of_ = bucket;
  for (const StoredMatrix& one : matrices_) {
    if (setting_.layout.places[one.place].bucket != bucket || one.how == StoredAs::kCopied) continue;
    if (transposes)
      setting_.stream.run(TransposeFp8{.x = one.values.data, .y = one.transposed});
    else
      format_.widen(setting_.stream, one.values, one.plain);
  }
}

void StoredForms::copy(size_t bucket) {
  if (!is_old_[bucket]) return;
  is_old_[bucket] = false;
  for (const StoredMatrix& one : matrices_)
    if (one.how == StoredAs::kCopied && setting_.layout.places[one.place].bucket == bucket)
      setting_.stream.run(Quantise{.x = one.plain,
                                   .format = DType::kE4M3,
                                   .y = one.fp8(),
                                   .transposed = one.transposed,
                                   .current = true});
}

void StoredForms::begin_step() {
  for (size_t b = 0; b < is_old_.size(); ++b)
    if (setting_.layout.buckets[b].trained > 0) is_old_[b] = true;
}

Tensor StoredForms::whole(const Params& weights, const ParamPlace& place) const {
  return place.stored == StoredAs::kOnly ? widened_view(place) : setting_.layout.view(weights.buckets, place);
}

// Values that are rounded from another dtype than that of `plain` come in rows, as many at a time as the
// buffer for a block has room for.
void StoredForms::round(const StoredMatrix& to, const Fill& fill) {
  const DType from = format_.rounds_from(setting_.dtype);
  const int64_t columns = to.plain.shape[-1], all_rows = to.plain.numel() / columns,
                scales_before = format_.scales_before(to.plain.shape);
  if (from == setting_.dtype && scales_before == 0) {
    fill(to.plain.view({to.plain.numel()}), 0);
    return format_.round(setting_.stream, to.plain, to.values);
  }
  Tensor room = with_dtype(buffer_, from);
  room.shape = {static_cast<int64_t>(buffer_.bytes() / size_of(from))};
  Tensor scales = to.values.scales;
  if (scales_before > 0) {  // they lie at the end of the room
    const int64_t left = room.numel() - scales_before;
    scales = with_dtype(room.rows(left, scales_before), DType::kF32), room = room.rows(0, left);
  }
  check(room.numel() >= columns, "{}: no room for a row of {} numbers while it is rounded", to.layer,
        columns);
  const auto scales_of = [&](int64_t rows) {
    const Shape shape{rows, columns};
    return scales_before > 0 ? format_.scales_before(shape) : format_.scales_of({shape, {rows}});
  };
  for (int64_t row = 0, rows = 0; row < all_rows; row += rows) {
    rows = std::min(room.numel() / columns, all_rows - row);
    const Tensor plain = room.rows(0, rows * columns);
    fill(plain, row * columns);
    format_.round(setting_.stream, plain.view({rows, columns}),
                  {.data = to.values.data.rows(format_.units(row * columns), format_.units(plain.numel())),
                   .scales = scales.rows(scales_of(row), scales_of(rows))});
  }
  if (scales_before > 0) format_.finish(setting_.stream, scales, to.values);
}

void StoredForms::write(const ParamPlace& place, const Fill& fill) {
  const StoredMatrix& one = matrix_of(place);
  round(one, fill);
  keep_own(one);
}

void StoredForms::write(const ParamPlace& place, const StoredValues& values) {
  const StoredMatrix& one = matrix_of(place);
  setting_.stream.run(Copy{values.data, one.values.data});
  setting_.stream.run(Copy{values.scales, one.values.scales});
  keep_own(one);
}

void StoredForms::keep_own(const StoredMatrix& one) {
  const ParamPlace& place = setting_.layout.places[one.place];
  if (turns_) {
    ParamPlace stored = place;
    stored.first = place.stored_first;
    const int64_t each = setting_.layout.buckets[place.bucket].stored_elements / setting_.part.count,
                  begins = setting_.part.index * each;
    const auto [first, count] = stored.within(begins, each);
    const Tensor values = one.values.data.view({one.values.data.numel()});
    const int64_t units = format_.units(count);
    if (count > 0)
      setting_.stream.run(Copy{values.rows(format_.units(begins + first - stored.first), units),
                               own_[place.bucket].rows(format_.units(first), units)});
  }
  setting_.stream.synchronize();
}

void StoredForms::round_whole(size_t bucket) {
  for (const StoredMatrix& one : matrices_)
    if (const ParamPlace& place = setting_.layout.places[one.place];
        place.bucket == bucket && one.how == StoredAs::kBeside)
      format_.round(setting_.stream, one.plain,
                    {stored_view(own_[bucket], place), one.values.scales, one.values.rows});
  if (const Tensor& vectors = vectors_[bucket]) {
    const int64_t first = setting_.layout.buckets[bucket].matrices;
    setting_.stream.run(Copy{training_views_.buckets[bucket].rows(first, vectors.numel()), vectors});
  }
}

void StoredForms::round_parts(const OwnWeights& own, WeightSource& source) {
  if (!amaxes_) return;
  const auto each_own = [&](const auto& use) {
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (matrices_[i].how != StoredAs::kBeside) continue;
      const ParamPlace& place = setting_.layout.places[matrices_[i].place];
      const ParamSlice slice = own.slice(place);
      if (slice.own) use(static_cast<int64_t>(i), place, slice.own.view({1, slice.own.numel()}));
    }
  };
  const Tensor amaxes = amaxes_.view({amaxes_.numel()}), own_amaxes = setting_.part.of(amaxes);
  setting_.stream.run(FillZero{amaxes});
  each_own([&](int64_t i, const ParamPlace&, const Tensor& values) {
    setting_.stream.run(Quantise{.x = values,
                                 .format = DType::kE4M3,
                                 .y = {.data = {}, .scale = matrices_[static_cast<size_t>(i)].fp8().scale},
                                 .amax = own_amaxes.rows(i, 1)});
  });
  setting_.axis.all_gather({.part = own_amaxes, .whole = amaxes});
  setting_.axis.wait();
  // Copies get their own scales with their next lease.
  const Tensor scales = scales_.view({1, std::ssize(matrices_), kFp8ScaleStride});
  setting_.stream.run(UpdateScales{.amax = amaxes_, .scale = scales, .current = true});
  each_own([&](int64_t i, const ParamPlace& place, const Tensor& values) {
    const Tensor& mine = own_[place.bucket];
    const ParamSlice to = slice_of(mine, setting_.part.index * mine.shape[0], place, all_of(place));
    setting_.stream.run(
        Quantise{.x = values,
                 .format = DType::kE4M3,
                 .y = {to.own.view(values.shape), matrices_[static_cast<size_t>(i)].fp8().scale}});
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

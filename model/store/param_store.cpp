#include "model/store/param_store.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace tessera {
namespace {

StoreSetting setting_of(const Stream& stream, Arena& arena, const ParamStore::Shape& shape,
                        Communicator& alone) {
  const ParamStore::Homes& homes = shape.homes;
  Communicator& axis = homes.axis ? *homes.axis : alone;
  const bool split = homes.shards.optimizer();
  check(!split || axis.size() == homes.shards.parts, "{} parts of the weights, and {} ranks to share them",
        homes.shards.parts, axis.size());
  const bool in_turns = homes.weights.host || homes.shards.weights();
  return {.stream = stream,
          .arena = arena,
          .model = shape.model,
          .dtype = shape.dtype,
          .shards = homes.shards,
          .axis = axis,
          .replicas = homes.replicas && homes.replicas->size() > 1 ? homes.replicas : nullptr,
          .layout = {shape.model,
                     homes.shards.parts,
                     homes.freeze,
                     {.config = homes.fp8,
                      .trained = in_turns && !homes.freeze,
                      .frozen_blocks = !homes.weights.format->is_multiplied(),
                      .experts_only = homes.weights.experts_only}},
          .part = split ? Part{.index = axis.rank(), .count = homes.shards.parts} : Part{},
          .trains = homes.training.has_value()};
}

}  // namespace

ParamStore::ParamStore(const Stream& stream, Arena& arena, const Shape& shape)
    : alone_(make_plan_communicator(stream.device(), 0, 1)),
      setting_(setting_of(stream, arena, shape, *alone_)),
      weights_(WeightHome::create(setting_, shape.homes.weights)),
      gradients_(shape.homes.training ? GradientHome::create(setting_, shape.homes.training->gradients)
                                      : nullptr),
      kept_(setting_, *weights_,
            shape.homes.training && shape.homes.training->kept ? *shape.homes.training->kept : arena) {}

WeightLease<TableParams> ParamStore::lease_tables(LeaseFor use) {
  weights_->make_whole(0, use);
  return {weights_->leases(0), weights_->views()};
}

WeightLease<BlockParams> ParamStore::lease_block(size_t layer, LeaseFor use) {
  const auto number = static_cast<int64_t>(layer);
  weights_->make_whole(number + 1, use);
  if (gradients_) gradients_->fetch_ahead(number);
  return {weights_->leases(number + 1), weights_->views(use).blocks[layer]};
}

WeightLease<HeadParams> ParamStore::lease_head(LeaseFor use) {
  const int64_t position = setting_.position_of_head();
  weights_->make_whole(position, use);
  return {weights_->leases(position), weights_->views(use)};
}

GradientHome& ParamStore::gradient_home() const {
  check(gradients_ != nullptr, "this store of weights has no gradients");
  return *gradients_;
}

GradientScope<TableParams> ParamStore::table_gradients() {
  return {gradient_home(), ParamLayout::kTables, gradients_->views()};
}

GradientScope<BlockParams> ParamStore::block_gradients(size_t layer) {
  const size_t bucket = ParamLayout::bucket_of_block(static_cast<int64_t>(layer));
  return {gradient_home(), bucket, gradients_->views().blocks[layer]};
}

GradientScope<HeadParams> ParamStore::head_gradients() {
  return {gradient_home(), setting_.layout.head, gradients_->views()};
}

void ParamStore::begin_step() {
  weights_->begin_step();
  gradient_home().begin_step();
}

bool ParamStore::communicates(const MicroStep& micro_step) const {
  return weights_->takes_turns() || gradient_home().transfers(micro_step);
}

void ParamStore::write_weights(const ParamPlace& given, const Tensor& values) {
  const ParamPlace& place = setting_.layout.places[given.index];
  const Stream& stream = setting_.stream;
  weights_->begin_writing();
  if (place.stored == StoredAs::kOnly)
    return weights_->forms().write(place, [&](const Tensor& to, int64_t first) {
      stream.run(Copy{values.view({values.numel()}).rows(first, to.numel()), to});
    });
  const bool split = dtype() != DType::kF32 && values.dtype == DType::kF32;
  for (const auto& [first, own, low] : kept_.weight_slices(place, {0, values.numel()})) {
    const Tensor from = values.view({values.numel()}).rows(first, own.shape[0]);
    if (split) {
      stream.run(SplitMasters{.masters = from, .weights = own, .low = low});
    } else {
      stream.run(Copy{from, own});
      if (low) stream.run(FillZero{low});
    }
  }
  stream.synchronize();
}

ParamSink ParamStore::writer(const std::string& name) {
  return [this, name](const ParamPlace& place, const Tensor& values) {
    if (name == kMaster)
      write_weights(place, values);
    else
      kept_.write(name, setting_.layout.places[place.index], values);
  };
}

NormalSink ParamStore::normal_writer() {
  return [this](const ParamPlace& given, const NormalValues& values) {
    const ParamPlace& place = setting_.layout.places[given.index];
    const Stream& stream = setting_.stream;
    weights_->begin_writing();
    if (place.stored == StoredAs::kOnly)
      return weights_->forms().write(place, [&](const Tensor& to, int64_t first) {
        stream.run(FillZero{to});
        const int64_t count = std::min(values.count - first, to.numel());
        if (count > 0) stream.run(values.to(to.rows(0, count), {}, first));
      });
    for (const auto& [first, own, low] : kept_.weight_slices(place, {0, values.count}))
      stream.run(values.to(own, low, first));
    for (const auto& [first, own, low] : kept_.weight_slices(place, {values.count, place.info.shape.numel()}))
      for (const Tensor& padding : {own, low})
        if (padding) stream.run(FillZero{padding});
  };
}

void ParamStore::write_stored(const ParamPlace& place, const StoredValues& values) {
  weights_->begin_writing();
  weights_->forms().write(setting_.layout.places[place.index], values);
}

// FP8 values are made from whole parameters: their scale is of all values.
bool ParamStore::keeps(const std::string& name, const ParamPlace& given) const {
  const ParamPlace& place = setting_.layout.places[given.index];
  if (name == kMaster) return place.stored == StoredAs::kOnly || weights_->slice(place, all_of(place)).own;
  return kept_.has(name, place);
}

void ParamStore::with_whole(const std::string& name, size_t bucket,
                            const std::function<void(const ParamReader&)>& use) {
  if (kept_.is_of_rows(name))
    return use([&](const ParamPlace& given, const Tensor& to) {
      kept_.read_rows(name, setting_.layout.places[given.index], to);
    });
  const bool masters = name == kMaster, of_weights = masters || name == kWeight,
             keeps = masters ? dtype() != DType::kF32 : !of_weights;
  if (of_weights) weights_->whole(bucket);
  Arena::Scope scope(setting_.arena);
  const Tensor whole = keeps ? gathered(kept_.of(name, bucket)) : Tensor{};
  const int64_t missing = whole ? layout().buckets[bucket].trained - whole.numel() : 0;  // before its first
  use([&](const ParamPlace& given, const Tensor& to) {
    const ParamPlace& place = setting_.layout.places[given.index];
    const auto of_place = [&](const Tensor& all) {
      return all.rows(place.first - missing, place.info.shape.numel());
    };
    if (masters && keeps && place.trained)
      setting_.stream.run(JoinMasters{
          .weights = of_place(weights_->views().buckets[bucket]), .low = of_place(whole), .masters = to});
    else
      setting_.stream.run(Copy{of_weights ? weights_->whole_weight(place) : of_place(whole), to});
  });
}

// From this rank's part of what is kept all of it, in the caller's scope of the arena
Tensor ParamStore::gathered(const Tensor& mine) {
  axis().wait();
  if (!mine || !shards().optimizer()) return mine;
  const Tensor whole = setting_.arena.alloc(MemoryTag::kCommunication, "gathered from all ranks", mine.dtype,
                                            {mine.numel() * part().count});
  const Tensor own = part().of(whole);  // a collective reads the device's memory only
  setting_.stream.run(Copy{mine, own});
  axis().all_gather({.part = own, .whole = whole});
  axis().wait();
  return whole;
}

const Params& ParamStore::weights() {
  weights_->check_whole();
  axis().wait();
  return weights_->views();
}

Tensor ParamStore::weight(const ParamPlace& place) {
  return layout().view(weights().buckets, layout().places[place.index]);
}

std::string ParamStore::name_at(const void* address) {
  const auto find = [&](const Params& views, const auto& home) {
    return place_at(layout(), views.buckets, address, [&](size_t bucket) { return home.holds(bucket); });
  };
  if (const ParamPlace* weight = find(weights_->views(), *weights_)) return weight->info.name;
  const ParamPlace* gradient = gradients_ ? find(gradients_->views(), *gradients_) : nullptr;
  return gradient ? "the gradient of " + gradient->info.name : "";
}

}  // namespace tessera

#include "model/store/weight_home.h"

#include <numeric>

#include "kernels/base/check.h"

namespace tessera {
namespace {

class WholeWeights final : public WeightHome {
 public:
  WholeWeights(const StoreSetting& setting, const StoredFormat& format)
      : WeightHome(setting), gathers_(leases_.size()) {
    views_ = setting.layout.params(setting.model, allocate_buckets(setting.arena, MemoryTag::kWeights,
                                                                   "weights", setting.dtype, setting.layout));
    for (const Tensor& bucket : views_.buckets) setting.stream.run(FillZero{bucket});
    forms_ = std::make_unique<StoredForms>(setting, views_, nullptr, setting.arena, format);
  }

  // A micro-step may be run from a CUDA graph, which should not make copies again each time.
  void begin_step() override {
    WeightHome::begin_step();
    for (int64_t position = 1; setting_.axis.size() == 1 && position <= setting_.position_of_head();
         ++position)
      forms_->copy(setting_.bucket_at(position));
  }
  Tensor updated(size_t bucket) const override {
    if (setting_.layout.buckets[bucket].trained == 0) return {};
    return setting_.part.of(setting_.layout.trained(views_.buckets, bucket));
  }
  void end_update(size_t bucket) override {
    if (!setting_.shards.optimizer() || setting_.layout.buckets[bucket].trained == 0) return;
    setting_.axis.all_gather(
        {.part = updated(bucket), .whole = setting_.layout.trained(views_.buckets, bucket)});
    gathers_[bucket] = setting_.axis.started();
  }
  ParamSlice slice(const ParamPlace& place, ElementRange range) const override {
    return slice_of(views_.buckets[place.bucket], 0, place, range);
  }

 private:
  void bring(int64_t position, LeaseFor /*use*/) override {
    if (int64_t& count = gathers_[setting_.bucket_at(position)]; count > 0)
      setting_.axis.wait_for(std::exchange(count, 0));
  }
  void bring_bucket(size_t /*bucket*/) override { wait(); }

  std::vector<int64_t> gathers_;  // how many collectives the weights of a bucket wait for; 0: none
};

class WeightsInTurn final : public WeightHome {
 public:
  WeightsInTurn(const StoreSetting& setting, Arena& where, std::unique_ptr<WeightSource> source,
                const StoredFormat& format)
      : WeightHome(setting),
        source_(std::move(source)),
        own_(allocate_buckets(where, MemoryTag::kWeights, "weights", setting.dtype, setting.layout,
                              setting.part.count)),
        turns_(
            setting.arena, MemoryTag::kWeights, "gathered weights", setting.dtype, setting.layout,
            [](const ParamBucket& bucket) { return bucket.elements; }, kBuffers) {
    views_ = setting.layout.params(setting.model, turns_.views());
    for (const Tensor& bucket : own_) setting.stream.run(FillZero{bucket});
    forms_ = std::make_unique<StoredForms>(setting, views_, &turns_, where, format);
  }

  void begin_step() override {
    WeightHome::begin_step();
    if (forms_->matrices().empty()) return;
    wait();  // a transfer of a step that was dropped may still read the values
    if (setting_.shards.weights())
      return forms_->round_parts(
          {.slice = [this](const ParamPlace& place) { return slice(place, all_of(place)); },
           .trained = [this](size_t bucket) { return updated(bucket); }},
          *source_);
    for (size_t b = 0; b < own_.size(); ++b) {
      if (!forms_->has_beside(b)) continue;
      fetch(b, LeaseFor::kInference);
      if (b + 1 < own_.size() && forms_->has_beside(b + 1)) fetch(b + 1, LeaseFor::kInference);
      source_->wait_for(turns_.of(b).transfers);
      forms_->round_whole(b);
    }
  }
  Tensor updated(size_t bucket) const override { return own(bucket, /*trained=*/true); }
  ParamSlice slice(const ParamPlace& place, ElementRange range) const override {
    const Tensor mine = own(place.bucket, place.trained);
    const int64_t begins = place.trained ? 0 : setting_.layout.buckets[place.bucket].trained;
    return mine ? slice_of(mine, begins + setting_.part.index * mine.shape[0], place, range) : ParamSlice{};
  }
  bool takes_turns() const override { return true; }
  bool holds(size_t bucket) const override { return turns_.of(bucket).bucket == bucket; }
  void wait() override {
    setting_.axis.wait();
    source_->wait_for(source_->started());
  }

 private:
  static constexpr size_t kBuffers = 2;  // for the blocks

  // Nothing but a forward reads the tables, and the last block is still in its buffer after it.
  void bring(int64_t position, LeaseFor use) override {
    const size_t bucket = setting_.bucket_at(position);
    fetch(bucket, use);
    source_->wait_for(turns_.of(bucket).transfers);
    if (position != position_) moves_forward_ = position > position_ || position == 0;
    position_ = position;
    const int64_t next = position + (moves_forward_ && position < setting_.position_of_head() ? 1 : -1);
    if (next < 1) return;
    const size_t tenant = turns_.of(setting_.bucket_at(next)).bucket;
    if (tenant == Turns::kNobody || leases_[tenant] == 0) fetch(setting_.bucket_at(next), use);
  }
  void bring_bucket(size_t bucket) override {
    fetch(bucket, LeaseFor::kInference);
    source_->wait_for(turns_.of(bucket).transfers);
  }
  void forget() override { turns_.forget(); }

  // Starts to bring a bucket, unless it is in its buffer or on its way.
  void fetch(size_t bucket, LeaseFor use) {
    Turns::Turn& turn = turns_.of(bucket);
    const ParamBucket& sizes = setting_.layout.buckets[bucket];
    const bool beside = use != LeaseFor::kInference && forms_->has_beside(bucket);
    if (turn.bucket == bucket && turn.is_beside == beside) return;
    check_not_leased(setting_.layout, {.tenant = turn.bucket, .needed_by = bucket}, leases_);
    const Tensor& whole = turns_.views()[bucket];
    const int64_t trained = sizes.trained, frozen = sizes.elements - trained;
    if (!beside && trained > 0) source_->start(own(bucket, true), whole.rows(0, trained));
    if (!beside && frozen > 0) source_->start(own(bucket, false), whole.rows(trained, frozen));
    if (beside || sizes.stored == StoredAs::kOnly) forms_->start(bucket, *source_);
    turn = {.bucket = bucket, .is_beside = beside, .transfers = source_->started()};
  }
  // This rank's part of the trained weights of a bucket, or of the frozen ones; may be none
  Tensor own(size_t bucket, bool trained) const {
    const int64_t each = setting_.part_elements(bucket);
    const Tensor& all = own_[bucket];
    if (trained ? each == 0 : all.shape[0] == each) return {};
    return trained ? all.rows(0, each) : all.rows(each, all.shape[0] - each);
  }

  std::unique_ptr<WeightSource> source_;
  std::vector<Tensor> own_;  // this rank's parts: trained, then frozen
  Turns turns_;
  int64_t position_ = 0;       // of the last lease
  bool moves_forward_ = true;  // the direction of travel
};

}  // namespace

std::unique_ptr<WeightHome> WeightHome::create(const StoreSetting& setting, const Place& place) {
  const bool split = setting.shards.weights();
  check(split || !place.host || setting.shards.parts == 1,
        "weights in host memory, of which {} ranks would have all: they have to split them",
        setting.shards.parts);
  if (!split && !place.host) return std::make_unique<WholeWeights>(setting, *place.format);
  const auto queue = [&] {
    return setting.stream.backend().make_copy_queue(setting.stream.queue(), place.poison);
  };
  std::unique_ptr<WeightSource> source;
  if (!split)
    source = std::make_unique<FromHost>(queue());
  else if (place.host)
    source = std::make_unique<FromHostsOfRanks>(setting.axis, setting.part, queue());
  else
    source = std::make_unique<FromRanks>(setting.axis);
  return std::make_unique<WeightsInTurn>(setting, place.host ? *place.host : setting.arena, std::move(source),
                                         *place.format);
}

void WeightHome::make_whole(int64_t position, LeaseFor use) {
  const size_t bucket = setting_.bucket_at(position);
  bring(position, use);
  forms_->make(bucket, use, leases_);
  if (use != LeaseFor::kInference && position > 0) forms_->copy(bucket);
}

const Tensor& WeightHome::whole(size_t bucket) {
  bring_bucket(bucket);
  forms_->make(bucket, LeaseFor::kInference, leases_);
  return views_.buckets[bucket];
}

void WeightHome::check_whole() const {
  check(!takes_turns(), "the weights take turns on the device: this rank has one of {} parts",
        setting_.part.count);
  check(!forms_->has_only(), "some weights have FP8 values only");
}

void WeightHome::begin_update() {
  const int64_t leases = std::accumulate(leases_.begin(), leases_.end(), int64_t{0});
  check(leases == 0,
        "the optimizer updates weights, and {} leases of them live: a forward or a decoder has to end first",
        leases);
  if (!takes_turns()) return;
  wait();  // a transfer may still read the parts
  forget();
}

void WeightHome::begin_writing() {
  wait();
  forget();
  forms_->forget();
}

}  // namespace tessera

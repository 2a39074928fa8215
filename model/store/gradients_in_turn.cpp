#include "kernels/base/check.h"
#include "model/store/gradient_home.h"
#include "model/store/host_copies.h"
#include "model/store/turns.h"

namespace tessera {
namespace {

constexpr size_t kBuffers = 3;  // for the blocks; gradients that are fetched have one more

class GradientsInTurn : public GradientHome {
 public:
  bool holds(size_t bucket) const override { return turns_.of(bucket).bucket == bucket; }
  void begin_step() override {  // forgets sums of a step that was dropped
    for (size_t turn = 0; turn < turns_.size(); ++turn) turns_[turn].adds_to = Turns::kNobody;
  }
  void wait() override {
    for (size_t turn = 0; turn < turns_.size(); ++turn) settle(turn);
    GradientHome::wait();
  }

 protected:
  GradientsInTurn(const StoreSetting& setting, size_t buffers)
      : GradientHome(setting),
        turns_(
            setting.arena, MemoryTag::kGradients, "gradients", setting.dtype, setting.layout,
            [](const ParamBucket& bucket) { return bucket.trained; }, buffers) {
    set_views(turns_.views());
  }
  // A tensor for each buffer, as large as this rank's part of what is in it
  std::vector<Tensor> allocate_by_turn(const char* name, DType dtype) const {
    std::vector<Tensor> by_turn;
    for (size_t turn = 0; turn < turns_.size(); ++turn) {
      const int64_t largest = turns_.largest(turn) / setting_.part.count;
      by_turn.push_back(largest == 0 ? Tensor{}
                                     : setting_.arena.alloc(MemoryTag::kGradients, name, dtype, {largest}));
    }
    return by_turn;
  }

  void open(size_t bucket) override {
    if (turns_.of(bucket).bucket == bucket) return;
    take(bucket);
    // What no backward writes is zero: the gaps between parameters, and gradients that are always 0.
    setting_.stream.run(FillZero{views_.buckets[bucket]});
  }
  void take(size_t bucket) {
    settle(turns_.turn_of(bucket));
    size_t& tenant = turns_.of(bucket).bucket;
    check(tenant == Turns::kNobody,
          "gradients of {} begin while those of {} are in use, whose buffer they need",
          setting_.layout.buckets[bucket].name,
          tenant == Turns::kNobody ? "" : setting_.layout.buckets[tenant].name);
    tenant = bucket;
  }
  // Its sums are under way; settle() adds or writes them to those of `adds_to`.
  void leave(size_t bucket, size_t adds_to) {
    turns_.of(bucket) = {.bucket = Turns::kNobody,
                         .transfers = setting_.axis.started(),
                         .of_replicas = setting_.replicas ? setting_.replicas->started() : 0,
                         .adds_to = adds_to,
                         .ends_step = micro_step_.last};
  }
  // Frees a buffer: waits for the sums of its last bucket.
  virtual void settle(size_t turn) {
    setting_.axis.wait_for(turns_[turn].transfers);
    if (setting_.replicas) setting_.replicas->wait_for(turns_[turn].of_replicas);
    const size_t bucket = std::exchange(turns_[turn].adds_to, Turns::kNobody);
    if (bucket != Turns::kNobody) add(bucket);
  }
  virtual void add(size_t bucket) = 0;  // its sums, which are complete

  Turns turns_;
};

class SplitGradients final : public GradientsInTurn {
 public:
  SplitGradients(const StoreSetting& setting, const Place& place, DType of_sums)
      : GradientsInTurn(setting, kBuffers) {
    if (place.accumulates) added_ = allocate_by_turn("sums of a micro-step", of_sums);
    allocate_parts(setting.arena, of_sums);
    allocate_room(of_sums);
  }
  const Grads& whole() const override {
    fail("the gradients are split into {} parts, and this rank has one of them", setting_.part.count);
  }
  bool accumulates_in_place(const MicroStep& /*micro_step*/) const override { return false; }
  bool transfers(const MicroStep& /*micro_step*/) const override { return true; }

 private:
  void close(size_t bucket) override {
    const bool adds = !micro_step_.first;
    reduce(views_.buckets[bucket], adds ? sums(bucket) : summed_[bucket]);
    leave(bucket, adds ? bucket : Turns::kNobody);
    if (!adds && micro_step_.last) reduce_over_replicas(summed_[bucket]);
  }
  Tensor sums(size_t bucket) const { return added_[turns_.turn_of(bucket)].rows(0, summed_[bucket].numel()); }
  void add(size_t bucket) override {
    setting_.stream.run(Accumulate{.x = sums(bucket), .y = summed_[bucket]});
    if (turns_.of(bucket).ends_step) reduce_over_replicas(summed_[bucket]);
  }

  std::vector<Tensor> added_;  // by turn: sums over ranks that are not yet added
};

class GradientsOnHost : public GradientsInTurn {
 public:
  const Grads& whole() const override {
    fail("the gradients lie in host memory, and take turns on the device");
  }
  bool transfers(const MicroStep& /*micro_step*/) const override { return true; }
  void begin_step() override {
    GradientsInTurn::begin_step();
    copies_.drop_fetches();
  }
  void wait() override {
    GradientsInTurn::wait();
    copies_.wait_for_writes();
  }

 protected:
  GradientsOnHost(const StoreSetting& setting, const Place& place, size_t buffers)
      : GradientsInTurn(setting, buffers), copies_(setting.stream, turns_.size(), place.poison) {}
  // Where the sums over ranks of this rank's part are before they are written
  Tensor sums(size_t bucket) const {
    return added_.empty() ? setting_.part.of(views_.buckets[bucket])
                          : added_[turns_.turn_of(bucket)].rows(0, summed_[bucket].numel());
  }
  void reduce_to_host(size_t bucket) {
    copies_.wait_for_write(turns_.turn_of(bucket));
    reduce(views_.buckets[bucket], sums(bucket));
  }
  void add(size_t bucket) override {
    copies_.write(turns_.turn_of(bucket), {.from = sums(bucket), .to = summed_[bucket]});
  }

  HostCopies copies_;
  std::vector<Tensor> added_;  // by turn: sums over ranks that are not yet on the host
};

// Accumulated on the host. The sums over ranks replace them, unless these are apart: of another dtype, or
// all that is written.
class WholeGradientsOnHost final : public GradientsOnHost {
 public:
  WholeGradientsOnHost(const StoreSetting& setting, const Place& place, DType of_sums)
      : GradientsOnHost(setting, place, kBuffers + (place.accumulates ? 1 : 0)) {
    const bool other_dtype = setting.shards.optimizer() && of_sums != setting.dtype,
               apart = setting.shards.optimizer() && (other_dtype || !place.accumulates);
    if (other_dtype) added_ = allocate_by_turn("sums of a micro-step", of_sums);
    if (place.accumulates || !apart) accumulated_ = allocate_whole(*place.host);
    if (apart)
      allocate_parts(*place.host, of_sums);
    else
      take_parts_of(accumulated_);
    allocate_room(of_sums);
  }
  void begin_micro_step(const MicroStep& micro_step) override {
    GradientHome::begin_micro_step(micro_step);
    fetches_ahead_ = accumulates_in_place(micro_step);
  }
  // The first that the backward adds to: half a forward ahead, when those of the last one are written
  void fetch_ahead(int64_t layer) override {
    const ParamLayout& layout = setting_.layout;
    if (!fetches_ahead_ || layer != setting_.model.layers / 2) return;
    fetches_ahead_ = false;
    for (const size_t bucket : {ParamLayout::bucket_of_block(setting_.model.layers - 1), layout.head})
      fetch(bucket);
  }

 private:
  void open(size_t bucket) override {
    if (!accumulates_in_place(micro_step_)) return GradientsInTurn::open(bucket);
    fetch(bucket);
    copies_.wait_for_fetch(turns_.turn_of(bucket));
    // The next one of a backward, the block below or the tables, unless the head is still in their buffer
    if (setting_.layout.is_block(bucket) && turns_.of(bucket - 1).bucket == Turns::kNobody) fetch(bucket - 1);
  }
  // Starts to copy the gradients of the micro-steps before into their buffer, unless they are there: the
  // tables, after the head that they are.
  void fetch(size_t bucket) {
    const Tensor& whole = views_.buckets[bucket];
    if (!whole || turns_.of(bucket).bucket == bucket) return;
    take(bucket);
    copies_.fetch(turns_.turn_of(bucket), {.from = accumulated_[bucket], .to = whole});
  }
  void close(size_t bucket) override {
    if (micro_step_.last && setting_.sums_over_ranks()) {
      reduce_to_host(bucket);
      reduce_over_replicas(sums(bucket));
      return leave(bucket, bucket);
    }
    copies_.write(turns_.turn_of(bucket), {.from = views_.buckets[bucket], .to = accumulated_[bucket]});
    turns_.of(bucket).bucket = Turns::kNobody;
  }
  void settle(size_t turn) override {
    GradientsOnHost::settle(turn);
    copies_.wait_for_write(turn);
  }

  std::vector<Tensor> accumulated_;  // there, of this rank's micro-steps
  bool fetches_ahead_ = false;       // for the backward of this micro-step, from its forward
};

// Only this rank's part of the sums is on the host.
class SplitGradientsOnHost final : public GradientsOnHost {
 public:
  SplitGradientsOnHost(const StoreSetting& setting, const Place& place, DType of_sums)
      : GradientsOnHost(setting, place, kBuffers) {
    added_ = allocate_by_turn("sums of a micro-step", of_sums);
    if (place.accumulates) fetched_ = allocate_by_turn("sums of the micro-steps before", of_sums);
    allocate_parts(*place.host, of_sums);
    allocate_room(of_sums);
  }
  bool accumulates_in_place(const MicroStep& /*micro_step*/) const override { return false; }

 private:
  void close(size_t bucket) override {
    reduce_to_host(bucket);
    if (micro_step_.first && micro_step_.last) reduce_over_replicas(sums(bucket));
    if (!micro_step_.first)
      copies_.fetch(turns_.turn_of(bucket), {.from = summed_[bucket], .to = before(bucket)});
    leave(bucket, bucket);
  }
  Tensor before(size_t bucket) const {
    return fetched_[turns_.turn_of(bucket)].rows(0, summed_[bucket].numel());
  }
  void add(size_t bucket) override {
    if (!copies_.wait_for_fetch(turns_.turn_of(bucket))) return GradientsOnHost::add(bucket);
    const Tensor all = before(bucket);
    setting_.stream.run(Accumulate{.x = sums(bucket), .y = all});
    if (turns_.of(bucket).ends_step && setting_.replicas) {
      reduce_over_replicas(all);
      setting_.replicas->wait();
    }
    copies_.write(turns_.turn_of(bucket), {.from = all, .to = summed_[bucket]});
  }

  std::vector<Tensor> fetched_;  // by turn: room to add sums to those of the micro-steps before
};

}  // namespace

std::unique_ptr<GradientHome> make_gradients_in_turn(const StoreSetting& setting,
                                                     const GradientHome::Place& place, DType of_sums) {
  if (!place.host) return std::make_unique<SplitGradients>(setting, place, of_sums);
  if (!setting.shards.gradients()) return std::make_unique<WholeGradientsOnHost>(setting, place, of_sums);
  return std::make_unique<SplitGradientsOnHost>(setting, place, of_sums);
}

}  // namespace tessera

// WeightHome: where the weights of a store lie, and how a part of the model becomes whole for a lease.
//   - Whole on the device: a lease waits for the ranks that update the part, at most.
//   - In turns, where ranks split them (Shards), or they lie in host memory: blocks take turns in two
//     buffers, and what is outside them has one more. A lease waits until its bucket has been gathered or
//     copied (WeightSource), and starts to bring the next one in the direction of travel: l + 1 in a
//     forward, l - 1 in a backward. A place in a buffer is always that of the same blocks, so that
//     addresses stay. A transfer starts after all work that the device was given before, so a buffer's
//     next tenant comes when the last one has been read.
// What matrices have in FP8 beside these values, or in place of them: stored_forms.h.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "model/store/stored_forms.h"

namespace tessera {

// The weights of a part of the model, while it lives. Views: TableParams, BlockParams, HeadParams
template <class Views>
class WeightLease {
 public:
  WeightLease() = default;
  WeightLease(int64_t& open, const Views& views) : open_(&open), views_(&views) { ++open; }
  WeightLease(WeightLease&& other) noexcept { *this = std::move(other); }
  WeightLease& operator=(WeightLease&& other) noexcept {
    std::swap(open_, other.open_), std::swap(views_, other.views_);
    return *this;
  }
  ~WeightLease() {
    if (open_) --*open_;
  }
  const Views& operator*() const { return *views_; }
  const Views* operator->() const { return views_; }

 private:
  int64_t* open_ = nullptr;  // leases of the bucket
  const Views* views_ = nullptr;
};

class WeightHome {
 public:
  // Allocates the weights, as zeros. Error: a host, and several ranks that do not split the weights
  struct Place {
    Arena* host = nullptr;                       // where they lie, in host memory; none: on the device
    Poison poison = Poison::kNo;                 // of the buffers into which they are copied
    const StoredFormat* format = &fp8_format();  // of matrices that have a stored form
    bool experts_only = false;                   // of a format that GEMMs do not read: experts only
  };
  static std::unique_ptr<WeightHome> create(const StoreSetting& setting, const Place& place);
  virtual ~WeightHome() = default;
  WeightHome(const WeightHome&) = delete;

  // For a lease of the part of the model at this position
  void make_whole(int64_t position, LeaseFor use);
  int64_t& leases(int64_t position) { return leases_[setting_.bucket_at(position)]; }
  const Params& views(LeaseFor use = LeaseFor::kInference) const {
    return use == LeaseFor::kInference ? views_ : forms_->training_views();
  }
  // The weights of a bucket, until the next lease or update. Every rank has to call it.
  const Tensor& whole(size_t bucket);
  // A parameter of that bucket, until then; of what has FP8 values alone, these, widened
  Tensor whole_weight(const ParamPlace& place) const {
    return forms_->whole(views_, setting_.layout.places[place.index]);
  }
  void check_whole() const;  // Error: weights take turns, or some have FP8 values alone

  virtual void begin_step() { forms_->begin_step(); }
  // Error: a lease lives that would see weights change.
  void begin_update();
  virtual Tensor updated(size_t bucket) const = 0;  // this rank's part of the trained weights; may be none
  // Says that it is updated. Where weights are whole, starts to send it to all ranks.
  virtual void end_update(size_t /*bucket*/) {}

  // Before values come from outside of a run
  void begin_writing();
  virtual ParamSlice slice(const ParamPlace& place, ElementRange range) const = 0;

  virtual bool takes_turns() const { return false; }
  virtual bool holds(size_t /*bucket*/) const { return true; }  // its memory has its values
  // Until nothing reads or writes weights but the stream
  virtual void wait() { setting_.axis.wait(); }
  StoredForms& forms() { return *forms_; }
  const StoredForms& forms() const { return *forms_; }

 protected:
  explicit WeightHome(const StoreSetting& setting)
      : setting_(setting), leases_(setting.layout.buckets.size()) {}
  virtual void bring(int64_t position, LeaseFor use) = 0;  // the values of a part
  virtual void bring_bucket(size_t bucket) = 0;
  virtual void forget() {}  // what buffers hold

  const StoreSetting& setting_;
  std::vector<int64_t> leases_;  // that live, of each bucket
  Params views_;
  std::unique_ptr<StoredForms> forms_;
};

}  // namespace tessera

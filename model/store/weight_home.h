// WeightHome: where the weights of a store lie, and how a part of the model becomes whole for a lease.
//   - Whole on the device: a lease waits at most for the ranks that update the part.
//   - In turns, if ranks split them (Shards), or if they lie in host memory: blocks alternate between two
//     buffers, and what is outside the blocks has one more. A lease waits until its bucket has been gathered
//     or copied (WeightSource), and starts to bring the next bucket in the direction of travel: l + 1 in a
//     forward, l - 1 in a backward. A block always has the same place in the same buffer, so addresses stay
//     the same. A transfer starts after all work that the device was given before: so a buffer gets its next
//     block when the last one has been read.
// For the stored forms that matrices have beside these values, or in place of them, see stored_forms.h.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "model/store/stored_forms.h"

namespace tessera {

// The weights of a part of the model, for as long as the lease lives. Views: TableParams, BlockParams,
// HeadParams
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
  int64_t* open_ = nullptr;  // counts the leases of the bucket
  const Views* views_ = nullptr;
};

class WeightHome {
 public:
  // Allocates the weights, as zeros. Error: they lie on a host, and several ranks do not split them
  struct Place {
    Arena* host = nullptr;                       // where they lie, in host memory; none: on the device
    Poison poison = Poison::kNo;                 // of the buffers into which they are copied
    const StoredFormat* format = &fp8_format();  // of matrices that have a stored form
    bool experts_only = false;                   // of a format that GEMMs do not read: experts only
  };
  static std::unique_ptr<WeightHome> create(const StoreSetting& setting, const Place& place);
  virtual ~WeightHome() = default;
  WeightHome(const WeightHome&) = delete;

  // Makes the part of the model at this position whole, for a lease.
  void make_whole(int64_t position, LeaseFor use);
  int64_t& leases(int64_t position) { return leases_[setting_.bucket_at(position)]; }
  const Params& views(LeaseFor use = LeaseFor::kInference) const {
    return use == LeaseFor::kInference ? views_ : forms_->training_views();
  }
  // The weights of a bucket, valid until the next lease or update. Every rank has to call it.
  const Tensor& whole(size_t bucket);
  // A parameter of that bucket, valid as long; if it has only FP8 values, these are widened
  Tensor whole_weight(const ParamPlace& place) const {
    return forms_->whole(views_, setting_.layout.places[place.index]);
  }
  void check_whole() const;  // Error: weights take turns, or some have only FP8 values

  virtual void begin_step() { forms_->begin_step(); }
  // Error: a lease lives, and would see the weights change.
  void begin_update();
  virtual Tensor updated(size_t bucket) const = 0;  // this rank's part of the trained weights; may be none
  // Says that the bucket is updated. If weights are whole, starts to send this rank's part to all ranks.
  virtual void end_update(size_t /*bucket*/) {}

  // Call it before weights are written that come from outside of the run.
  void begin_writing();
  virtual ParamSlice slice(const ParamPlace& place, ElementRange range) const = 0;

  virtual bool takes_turns() const { return false; }
  virtual bool holds(size_t /*bucket*/) const { return true; }  // the bucket's memory now has its values
  // Waits until only the stream reads or writes weights
  virtual void wait() { setting_.axis.wait(); }
  StoredForms& forms() { return *forms_; }
  const StoredForms& forms() const { return *forms_; }

 protected:
  explicit WeightHome(const StoreSetting& setting)
      : setting_(setting), leases_(setting.layout.buckets.size()) {}
  virtual void bring(int64_t position, LeaseFor use) = 0;  // brings the values of a part of the model
  virtual void bring_bucket(size_t bucket) = 0;
  virtual void forget() {}  // forgets what buffers hold

  const StoreSetting& setting_;
  std::vector<int64_t> leases_;  // the number of leases of each bucket that live
  Params views_;
  std::unique_ptr<StoredForms> forms_;
};

}  // namespace tessera

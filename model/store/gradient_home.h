// GradientHome: where the gradients of a store lie, and how they are summed over micro-steps and ranks.
//
// The end of a scope says that the gradients of a part of the model are complete for this micro-step: they
// can be summed over ranks, beside the backward of other parts.
//   - Whole on the device: a backward adds to them, and the last micro-step of a step sums them.
//   - In turns: parts of the model take turns in a few buffers (Turns). Three serve the blocks: the scopes
//     of two overlap, since the backward of a block writes a bias gradient of the block below, and the
//     sums of the block above are still under way.
//     - Split: each micro-step adds the sum over ranks of this rank's part to what it has.
//     - In host memory: from the second micro-step on those of a block are fetched, one block ahead of the
//       backward that adds to them, and written back at the end of its scope: four buffers serve the blocks.
//     - Both: it is this rank's part of the sums that is fetched, added to and written back.
// Sums keep their order, so the bits are the same.
//
// Where the ranks are in replicas, each of which splits the parameters in the same way (hybrid sharding:
// Zhao et al., arXiv:2304.11277), sums are first made within a replica, in each micro-step as above, and
// then, once a step, over the ranks that have the same part.
#pragma once

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "model/store/setting.h"

namespace tessera {

struct MicroStep {
  bool first, last;  // of its step
};

class GradientHome {
 public:
  // Allocates; gradients begin as zeros.
  struct Place {
    bool accumulates = true;      // a step has several micro-steps
    Arena* host = nullptr;        // where they lie, in host memory; none: on the device
    Poison poison = Poison::kNo;  // of the buffers between which they are copied
    bool reduce_in_fp32 = false;  // bf16 gradients are summed over ranks in fp32
  };
  static std::unique_ptr<GradientHome> create(const StoreSetting& setting, const Place& place);
  virtual ~GradientHome() = default;
  GradientHome(const GradientHome&) = delete;

  const Grads& views() const { return views_; }
  // All of them. Error: they are split, or take turns on the device.
  virtual const Grads& whole() const { return views_; }
  virtual bool holds(size_t /*bucket*/) const { return true; }  // its memory has its gradients

  virtual void begin_step() {}
  virtual void begin_micro_step(const MicroStep& micro_step);
  // Whether a backward has to add to the gradients of the micro-steps before; else the home adds them.
  virtual bool accumulates_in_place(const MicroStep& micro_step) const { return !micro_step.first; }
  // Whether a micro-step communicates, or copies gradients
  virtual bool transfers(const MicroStep& micro_step) const;
  // Error: they were complete already in this micro-step.
  void begin(size_t bucket);
  void end(size_t bucket);
  virtual void fetch_ahead(int64_t /*layer*/) {}  // when a block is leased
  // Waits until the gradients of all ranks are summed.
  virtual void wait() {
    setting_.axis.wait();
    if (setting_.replicas) setting_.replicas->wait();
  }

  // Of an update: this rank's part of the sums, a tensor for each bucket, none where all of it is frozen
  const std::vector<Tensor>& summed() const { return summed_; }
  std::vector<Tensor> tensors_of_norm() const;  // all sums

 protected:
  explicit GradientHome(const StoreSetting& setting)
      : setting_(setting), scopes_left_(setting.layout.buckets.size()) {}
  // In the dtype of the store, for the gradients of all buckets
  std::vector<Tensor> allocate_whole(Arena& arena) const;
  void set_views(std::vector<Tensor> buckets);
  void allocate_parts(Arena& arena, DType dtype);  // summed_
  void take_parts_of(const std::vector<Tensor>& whole);
  void allocate_room(DType of_sums);
  Tensor room_for(const Tensor& whole) const { return room_ ? room_.rows(0, whole.numel()) : Tensor{}; }
  // Sums over the ranks of a replica: to `part`, or without a split optimizer in place
  void reduce(const Tensor& whole, const Tensor& part);
  // Sums those of a step over replicas, in place
  void reduce_over_replicas(const Tensor& sums);

  const StoreSetting& setting_;
  Grads views_;
  std::vector<Tensor> summed_;
  MicroStep micro_step_{};

 private:
  virtual void open(size_t /*bucket*/) {}
  virtual void close(size_t bucket) = 0;

  Tensor room_;                   // fp32, for a bucket; only where bf16 gradients are summed in fp32
  std::vector<int> scopes_left_;  // of a bucket in this micro-step
};

// Split, in host memory, or both. `of_sums`: the dtype of what is summed over ranks
std::unique_ptr<GradientHome> make_gradients_in_turn(const StoreSetting& setting,
                                                     const GradientHome::Place& place, DType of_sums);

// The gradients of a part of the model, until they are complete for a micro-step. The end communicates, so
// it may throw; it does nothing while another exception is on its way.
template <class Views>
class GradientScope {
 public:
  GradientScope() = default;
  GradientScope(GradientHome& home, size_t bucket, const Views& views)
      : home_(&home), bucket_(bucket), views_(&views) {
    home.begin(bucket);
  }
  GradientScope(GradientScope&& other) noexcept { take(other); }
  // Ends this one.
  GradientScope& operator=(GradientScope&& other) noexcept(false) {
    end();
    take(other);
    return *this;
  }
  ~GradientScope() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) end();
  }
  const Views& operator*() const { return *views_; }
  const Views* operator->() const { return views_; }
  const Views* get() const { return views_; }  // null: a scope of nothing

 private:
  void take(GradientScope& other) noexcept {
    home_ = std::exchange(other.home_, nullptr), bucket_ = other.bucket_;
    views_ = std::exchange(other.views_, nullptr);
  }
  void end() {
    if (GradientHome* home = std::exchange(home_, nullptr)) home->end(bucket_);
  }

  GradientHome* home_ = nullptr;
  size_t bucket_ = 0;
  const Views* views_ = nullptr;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace tessera

// GradientHome: where the gradients of a store lie, and how they are summed over micro-steps and ranks.
//
// A gradient scope ends when the gradients of a part of the model are complete for this micro-step. They can
// then be summed over ranks, beside the backward of other parts.
//   - Whole on the device: a backward adds to them, and the last micro-step of a step sums them over ranks.
//   - In turns: the parts of the model alternate between a few buffers (Turns). Three buffers serve the
//     blocks. Two of them have the gradients of two blocks whose scopes overlap, since the backward of a
//     block writes a bias gradient of the block below. The third has the block above, whose sums are still
//     under way.
//     - Split: in each micro-step the sum over ranks of this rank's part is added to what the rank has.
//     - In host memory: from the second micro-step on, the gradients of a block are fetched, one block ahead
//       of the backward that adds to them, and written back at the end of its scope. Four buffers serve the
//       blocks.
//     - Both: this rank's part of the sums is fetched, added to and written back.
// Sums keep their order, so the bits are the same.
//
// Ranks may be grouped in replicas, each of which splits the parameters in the same way (hybrid sharding:
// Zhao et al., arXiv:2304.11277). Then each micro-step sums within a replica, as above, and once a step the
// sums are added over the ranks that have the same part.
#pragma once

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "model/store/setting.h"

namespace tessera {

struct MicroStep {
  bool first, last;  // whether it is the first or the last of its step
};

class GradientHome {
 public:
  // Allocates; gradients begin as zeros.
  struct Place {
    bool accumulates = true;      // whether a step has several micro-steps
    Arena* host = nullptr;        // the host memory in which they lie; null: they lie on the device
    Poison poison = Poison::kNo;  // for the buffers between which they are copied
    bool reduce_in_fp32 = false;  // whether bf16 gradients are summed over ranks in fp32
  };
  static std::unique_ptr<GradientHome> create(const StoreSetting& setting, const Place& place);
  virtual ~GradientHome() = default;
  GradientHome(const GradientHome&) = delete;

  const Grads& views() const { return views_; }
  // All gradients. Error: they are split, or take turns on the device.
  virtual const Grads& whole() const { return views_; }
  virtual bool holds(size_t /*bucket*/) const { return true; }  // the bucket's memory now has its gradients

  virtual void begin_step() {}
  virtual void begin_micro_step(const MicroStep& micro_step);
  // Whether the backward itself adds to the gradients of earlier micro-steps; if not, the home adds them.
  virtual bool accumulates_in_place(const MicroStep& micro_step) const { return !micro_step.first; }
  // Whether a micro-step communicates, or copies gradients
  virtual bool transfers(const MicroStep& micro_step) const;
  // Error: the bucket's gradients were already complete in this micro-step.
  void begin(size_t bucket);
  void end(size_t bucket);
  virtual void fetch_ahead(int64_t /*layer*/) {}  // called when a block is leased
  // Waits until the gradients of all ranks are summed.
  virtual void wait() {
    setting_.axis.wait();
    if (setting_.replicas) setting_.replicas->wait();
  }

  // For an update: this rank's part of the sums, a tensor for each bucket; none if all of the bucket is
  // frozen
  const std::vector<Tensor>& summed() const { return summed_; }
  std::vector<Tensor> tensors_of_norm() const;  // the sums of all buckets

 protected:
  explicit GradientHome(const StoreSetting& setting)
      : setting_(setting), scopes_left_(setting.layout.buckets.size()) {}
  // Allocates gradients of all buckets, in the dtype of the store.
  std::vector<Tensor> allocate_whole(Arena& arena) const;
  void set_views(std::vector<Tensor> buckets);
  void allocate_parts(Arena& arena, DType dtype);  // allocates summed_
  void take_parts_of(const std::vector<Tensor>& whole);
  void allocate_room(DType of_sums);
  Tensor room_for(const Tensor& whole) const { return room_ ? room_.rows(0, whole.numel()) : Tensor{}; }
  // Sums over the ranks of a replica. The result goes to `part`; if the optimizer is not split, it stays in
  // `whole`
  void reduce(const Tensor& whole, const Tensor& part);
  // Sums the sums of a step over replicas, in place.
  void reduce_over_replicas(const Tensor& sums);

  const StoreSetting& setting_;
  Grads views_;
  std::vector<Tensor> summed_;
  MicroStep micro_step_{};

 private:
  virtual void open(size_t /*bucket*/) {}
  virtual void close(size_t bucket) = 0;

  Tensor room_;                   // fp32, for one bucket; only if bf16 gradients are summed in fp32
  std::vector<int> scopes_left_;  // for each bucket, the scopes that are still to end in this micro-step
};

// For gradients that are split, in host memory, or both. `of_sums`: the dtype of what is summed over ranks
std::unique_ptr<GradientHome> make_gradients_in_turn(const StoreSetting& setting,
                                                     const GradientHome::Place& place, DType of_sums);

// The gradients of a part of the model, until they are complete for a micro-step. The end of the scope
// communicates, so it may throw; while another exception is on its way it does nothing.
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
  const Views* get() const { return views_; }  // null: an empty scope

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

// Turns: buffers between which the buckets of a model alternate, if their values are split over ranks or lie
// on the host. With B buffers for blocks, block l has buffer l mod B, so that neighbours have different ones.
// One more buffer is for what is outside the blocks; the tables and the head share it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/check.h"
#include "model/params.h"

namespace tessera {

class Turns {
 public:
  static constexpr size_t kNobody = SIZE_MAX;

  // `elements`: how many elements of a bucket its buffer must hold
  Turns(Arena& arena, MemoryTag tag, const std::string& what, DType dtype, const ParamLayout& layout,
        const std::function<int64_t(const ParamBucket&)>& elements, size_t of_blocks)
      : last_block_(layout.buckets.size() - (layout.head_is_tied() ? 1 : 2)), of_blocks_(of_blocks) {
    std::vector<int64_t> largest(of_blocks + 1);
    for (size_t b = 0; b < layout.buckets.size(); ++b)
      largest[turn_of(b)] = std::max(largest[turn_of(b)], elements(layout.buckets[b]));
    for (size_t turn = 0; turn < largest.size(); ++turn)
      buffers_.push_back(largest[turn] == 0
                             ? Tensor{}
                             : arena.alloc(tag,
                                           turn == 0 ? fmt::format("{} outside the blocks", what)
                                                     : fmt::format("{} of a block, buffer {}", what, turn),
                                           dtype, {largest[turn]}));
    turns_.resize(largest.size());
    make_views(layout, elements);
  }

  // Uses the buffers of `others` while their contents are not needed. Elements must not take more room there
  // than those of `others`.
  Turns(const Turns& others, DType dtype, const ParamLayout& layout,
        const std::function<int64_t(const ParamBucket&)>& elements)
      : last_block_(others.last_block_), of_blocks_(others.of_blocks_), buffers_(others.buffers_) {
    for (Tensor& buffer : buffers_) buffer.dtype = dtype;
    make_views(layout, elements);
  }

  struct Turn {
    size_t bucket = kNobody;  // whose values are in the buffer, or on their way to it
    bool is_beside = false;   // it has the stored form of matrices that also have other values
    int64_t transfers = 0;    // how many to wait for: see Communicator::wait_for, CopyQueue::wait_for
    int64_t of_replicas = 0;  // likewise for collectives among replicas
    // For gradients: the bucket to which its sums still have to be added, or written on the host
    size_t adds_to = kNobody;
    bool ends_step = false;  // these are from the last micro-step: afterwards they are summed over replicas
  };
  size_t size() const { return turns_.size(); }
  size_t turn_of(size_t bucket) const {
    return bucket == ParamLayout::kTables || bucket > last_block_ ? 0 : 1 + (bucket - 1) % of_blocks_;
  }
  Turn& operator[](size_t turn) { return turns_[turn]; }
  Turn& of(size_t bucket) { return turns_[turn_of(bucket)]; }
  const Turn& of(size_t bucket) const { return turns_[turn_of(bucket)]; }
  const std::vector<Tensor>& views() const { return views_; }  // of each bucket, in its buffer
  int64_t largest(size_t turn) const { return buffers_[turn] ? buffers_[turn].numel() : 0; }
  void forget() {
    for (Turn& turn : turns_) turn.bucket = kNobody;
  }

 private:
  void make_views(const ParamLayout& layout, const std::function<int64_t(const ParamBucket&)>& elements) {
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const int64_t count = elements(layout.buckets[b]);
      views_.push_back(count == 0 ? Tensor{} : buffers_[turn_of(b)].rows(0, count));
    }
  }

  size_t last_block_, of_blocks_;
  std::vector<Tensor> buffers_, views_;
  std::vector<Turn> turns_;
};

// `tenant` has the buffer that another bucket needs; Turns::kNobody: the buffer is free. Error: the tenant is
// leased.
struct BufferNeed {
  size_t tenant, needed_by;
};
inline void check_not_leased(const ParamLayout& layout, const BufferNeed& need,
                             const std::vector<int64_t>& leases) {
  if (need.tenant != Turns::kNobody && leases[need.tenant] > 0)
    fail("{} is asked for while {} is in use, whose buffer it needs", layout.buckets[need.needed_by].name,
         layout.buckets[need.tenant].name);
}

}  // namespace tessera

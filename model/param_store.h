// ParamStore: the owner of a model's weights and, in training, of their gradients and of what the optimizer
// keeps for them. All lie in buckets (ParamLayout): one for each block, and one for what is outside them.
//
// The model asks for a part of itself, the tables, a block or the head, and has whole views for a scope. It
// never knows where the values were before, or where they go after.
//   - A lease gives the weights. Before the first one of a step the part may have to wait for ranks that
//     update it; then the FP8 copies of its matrices are made (fp8.h).
//   - A gradient scope gives the gradients. Its end says that they are complete for this micro-step: with the
//     last micro-step of a step they are summed over ranks, beside the backward of other parts.
//
// Where a tensor lies is its Placement. Those that exist:
//   - Weights are whole.
//   - Gradients are whole. Their sums over ranks take their place, or are split: each rank has its part.
//   - What the optimizer keeps is whole or split: ZeRO stage 1 (Rajbhandari et al., arXiv:1910.02054). Then a
//     rank updates its part of the weights, and a bucket is gathered while the next is updated.
//
// Where others go:
//   - Gradients split (ZeRO-2). Two buffers of the largest block, and the parity of a block chooses, so that
//     addresses stay as CUDA graphs have them. A scope gives views of a buffer; its end adds to this rank's
//     part by a reduce-scatter. Two scopes overlap: the backward of a block writes a bias gradient of the
//     block below.
//   - Weights split (ZeRO-3). Two buffers likewise. A lease waits for the gather of its block and starts that
//     of the next one in the direction of travel, l + 1 in a forward and l - 1 in a backward; its end gives
//     the buffer back. In FP8 the bytes of the copies are gathered.
//   - Pinned host memory (offload): Placement::where is an arena of it. A lease is then a transfer into a
//     buffer, the end of a gradient scope one out of it; the optimizer has two buffers more.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/communicator.h"
#include "model/fp8.h"
#include "model/init.h"

namespace tessera {

class ParamStore;

// One of `count` equal parts of the trained elements of a bucket
struct Part {
  int64_t index = 0, count = 1;
  Tensor of(const Tensor& bucket) const {
    const int64_t each = bucket.shape[0] / count;
    return bucket.rows(index * each, each);
  }
};

enum class Split : uint8_t { kWhole, kOverAxis };  // every rank has all of a bucket, or its part of it
struct Placement {
  DType dtype;
  Arena* where;
  Split split = Split::kWhole;
};

// The weights of a part of the model, while it lives. Views: TableParams, BlockParams, HeadParams
template <class Views>
class WeightLease {
 public:
  WeightLease() = default;
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
  friend class ParamStore;
  WeightLease(int64_t& open, const Views& views) : open_(&open), views_(&views) { ++open; }

  int64_t* open_ = nullptr;  // leases of the store
  const Views* views_ = nullptr;
};

// The gradients of a part of the model, until they are complete for a micro-step. The end communicates, so
// it may throw; it does nothing while another exception is on its way.
template <class Views>
class GradientScope {
 public:
  GradientScope() = default;
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
  friend class ParamStore;
  GradientScope(ParamStore& store, size_t bucket, const Views& views)
      : store_(&store), bucket_(bucket), views_(&views) {}
  void take(GradientScope& other) noexcept {
    store_ = std::exchange(other.store_, nullptr), bucket_ = other.bucket_;
    views_ = std::exchange(other.views_, nullptr);
  }
  void end();

  ParamStore* store_ = nullptr;
  size_t bucket_ = 0;
  const Views* views_ = nullptr;
  int exceptions_ = std::uncaught_exceptions();
};

inline constexpr const char* kMaster = "master";  // the fp32 weights, among the optimizer's tensors

class ParamStore {
 public:
  // Allocates the weights, as zeros. Their trained elements can be cut in `parts` equal parts, one for each
  // rank.
  struct Shape {
    ModelConfig model;
    DType dtype = DType::kF32;
    int64_t parts = 1;
    Freeze freeze = {};
  };
  ParamStore(const Stream& stream, Arena& arena, const Shape& shape);
  ParamStore(const ParamStore&) = delete;

  // `with_fp8`: of a training step in FP8. The FP8 copies of the part are then made before its first lease.
  WeightLease<TableParams> lease_tables();
  WeightLease<BlockParams> lease_block(size_t layer, bool with_fp8 = false);
  WeightLease<HeadParams> lease_head(bool with_fp8 = false);

  // Error: they were complete already in this micro-step.
  GradientScope<TableParams> table_gradients();
  GradientScope<BlockParams> block_gradients(size_t layer);
  GradientScope<HeadParams> head_gradients();

  // Allocates what training needs beside the weights; gradients begin as zeros.
  struct Training {
    Communicator* axis = nullptr;  // of the ranks that share a step; none: this rank alone
    bool reduce_in_fp32 = false;   // bf16 gradients are summed over ranks in fp32
    Fp8Run fp8 = {};
  };
  void prepare_training(const Training& training);
  // Before the first lease of a step. FP8 copies are made now, or where a part may wait for ranks, with its
  // lease.
  void begin_step();
  void begin_micro_step(bool last);
  // Waits until the gradients of all ranks are summed.
  void wait_for_gradients() { axis().wait(); }

  // What an optimizer keeps under a name: fp32 copies of the weights unless they are fp32 themselves, and a
  // tensor of each bucket for each name that it adds. They are undefined until clear_kept().
  void keep_masters();
  void keep(const std::string& name, DType dtype);
  std::vector<std::string> kept_names() const;  // in the order of keeping
  // This rank's part of a bucket. None where all of the bucket is frozen. Error: an unknown name
  const Tensor& kept(const std::string& name, size_t bucket) const;
  void clear_kept();

  // Of an update: each has a tensor for each bucket, none where all of it is frozen
  const std::vector<Tensor>& summed_gradients() const { return summed_; }  // this rank's part
  Tensor updated_weights(size_t bucket) const;                             // likewise
  // Error: a lease lives that would see weights change.
  void begin_update() const;
  // Starts to send this rank's part of a bucket's weights to all ranks; later leases wait for theirs.
  void gather(size_t bucket);

  // Takes the values of all parameters in fp32 or bf16, on the host or the device, and writes what is this
  // rank's of the optimizer's tensor of that name. Masters: the weights as well, rounded to their dtype,
  // and they alone where no masters are kept.
  ParamSink writer(const std::string& name = kMaster);
  NormalSink normal_writer();  // the same; where masters are kept, clear_kept() has to come before

  // Calls use() with all trained elements of what is kept of a bucket; an empty tensor if there are none.
  // Every rank has to call it.
  void with_whole(const std::string& name, size_t bucket, const std::function<void(const Tensor&)>& use);

  const ModelConfig& model() const { return shape_.model; }
  DType dtype() const { return shape_.dtype; }
  const ParamLayout& layout() const { return layout_; }
  Part part() const { return part_; }  // this rank's, of what is split
  bool is_split() const { return part_.count > 1; }
  Communicator& axis() const { return *axis_; }
  Fp8& fp8() { return *fp8_; }

  // Whole views outside of any scope, after all that is under way: of files and tests
  const Params& weights();
  Tensor weight(const ParamPlace& place);  // by its index
  const Grads& gradients() const { return gradients_; }
  // The fp32 weights. Error: this rank has one part of several, or some are frozen
  Params masters() const;

 private:
  template <class Views>
  friend class GradientScope;
  struct Kept {
    std::string name;
    std::vector<Tensor> buckets;
  };
  // What a rank keeps of the first `count` values of a parameter
  struct Slice {
    int64_t first = 0;  // of the parameter
    Tensor kept = {};   // none: nothing
  };

  std::vector<Tensor> allocate(MemoryTag tag, const std::string& name, const Placement& placement) const;
  void wait_for(size_t bucket);
  void make_fp8(int64_t layer);
  void begin_gradients(size_t bucket);
  void end_gradients(size_t bucket);
  void reduce(size_t bucket);
  Slice slice_of(const std::string& name, const ParamPlace& place, int64_t count) const;
  void write(const std::string& name, const ParamPlace& given, const Tensor& values);
  bool has_masters() const { return shape_.dtype != DType::kF32 && !kept_.empty(); }

  Stream stream_;
  Arena& arena_;
  Shape shape_;
  ParamLayout layout_;
  Params weights_;
  std::unique_ptr<Communicator> alone_;  // of one rank
  Communicator* axis_;
  Part part_;
  std::optional<Fp8> fp8_;
  std::vector<bool> fp8_is_old_;  // of each block and the head: the copies are those of the step before
  Grads gradients_;
  std::vector<Tensor> summed_;
  Tensor sums_;  // fp32, room for a bucket; only where bf16 gradients are summed in fp32
  std::vector<Kept> kept_;
  std::vector<int64_t> gathers_;  // how many collectives the weights of a bucket wait for; 0: none
  std::vector<int> scopes_left_;  // of a bucket's gradients in this micro-step
  bool reduces_ = false;          // gradients, at the end of their scopes in this micro-step
  int64_t leases_ = 0;            // that live
};

template <class Views>
void GradientScope<Views>::end() {
  if (ParamStore* store = std::exchange(store_, nullptr)) store->end_gradients(bucket_);
}

}  // namespace tessera

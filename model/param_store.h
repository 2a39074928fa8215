// ParamStore: the owner of a model's weights and, in training, of their gradients and of what the optimizer
// keeps for them. All lie in buckets (ParamLayout): one for each block, and one for what is outside them.
//
// The model asks for a part of itself, the tables, a block or the head, and has whole views for a scope. It
// never knows where the values were before, or where they go after.
//   - A lease gives the weights. Before the first one of a step the part may have to wait for ranks that
//     update it; then the FP8 copies of its matrices are made (fp8.h).
//   - A gradient scope gives the gradients. Its end says that they are complete for this micro-step, and that
//     they can be summed over ranks, beside the backward of other parts.
//
// What the ranks split among them is Shards; each has one of R equal parts of every bucket. Without R > 1
// everything is whole.
//   - The optimizer's tensors: a rank updates its part of the weights, and a bucket is gathered while the
//     next one is updated.
//   - Gradients: parts of the model take turns in a few buffers (Turns). The end of a scope adds the sum over
//     ranks of this rank's part to what it keeps, in each micro-step. Three buffers serve the blocks: the
//     scopes of two overlap, since the backward of a block writes a bias gradient of the block below, and the
//     sums of the block above are still under way.
//   - Weights: blocks take turns in two buffers. A lease waits until its block is gathered, and starts to
//     gather the next one in the direction of travel, l + 1 in a forward and l - 1 in a backward.
//   What is outside the blocks has a buffer more of each kind, which the tables and the head share.
//
// Gradients that lie in host memory (Training::gradients) take turns in such buffers, too. From the second
// micro-step on those of a block are fetched, one block ahead of the backward that adds to them, and written
// back at the end of its scope: four buffers serve the blocks. Of split gradients it is this rank's part of
// the sums that is fetched, added to and written back. Sums keep their order, so the bits are the same.
//
// Weights that lie in host memory (Shape::host) take turns in the same buffers: a block is copied in place of
// gathered, by a queue of its own. With several ranks each copies its part, and waits for that before it
// gathers them.
//
// A place in a buffer is always that of the same blocks, so that addresses stay. A collective starts after
// all work that the device was given before, so a buffer's next tenant comes when the last one has been read.
//
// FP8 (fp8.h, param_store_fp8.cpp): frozen matrices that are multiplied in FP8 have FP8 values alone. They
// are whole on the device, or split, gathered and copied as the other weights are. Of trained ones that take
// turns, each rank rounds its part once a step, by a scale that all ranks agree on, and a lease in training
// gathers or copies the FP8 values in place of the others. A lease for a backward has them transposed, in a
// buffer that the blocks share; there, too, frozen matrices get the dtype of the others for a lease that is
// not of a training step.
//
// What the optimizer keeps can lie in host memory (Arena::mapped): the update reads and writes it there, over
// the bus, and likewise weights and gradients that lie there.
//
// bf16 weights are updated by their fp32 masters. Of these the optimizer keeps the lower 16 bits, which with
// the weights are the masters (kernels/base/master.h). So what writes weights writes the bits of its part,
// too. Masters go in by writer(), and come out by with_whole(), as fp32.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/present.h"
#include "kernels/communicator.h"
#include "model/fp8.h"
#include "model/host_copies.h"
#include "model/init.h"
#include "model/shards.h"
#include "model/turns.h"
#include "model/update_rule.h"

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

enum class LeaseFor : uint8_t {
  kInference,  // an evaluation, a sample: nothing is multiplied in FP8
  kForward,
  kBackward,  // of a training step
};

// Names besides those of the update rule: the fp32 weights, and the weights as the model reads them
inline constexpr const char *kMaster = "master", *kWeight = "weight";

// Writes the values of a parameter to `to`, fp32 on the host or the device.
using ParamReader = std::function<void(const ParamPlace& place, const Tensor& to)>;

class ParamStore {
 public:
  // Allocates the weights, as zeros. Error: a host, and several ranks that do not split the weights
  struct Shape {
    ModelConfig model;
    DType dtype = DType::kF32;
    Shards shards = {};
    Freeze freeze = {};
    Fp8Config fp8 = {};           // of the training steps
    Arena* host = nullptr;        // where the weights lie, in host memory; none: on the device
    Poison poison = Poison::kNo;  // of the buffers into which they are copied
  };
  ParamStore(const Stream& stream, Arena& arena, const Shape& shape);
  ParamStore(const ParamStore&) = delete;

  // For a training step in FP8, the copies that the store does not keep are made before a part's first lease.
  // Where weights are split, every rank leases the same parts in the same order. Error: a lease of another
  // block lives in the part's buffer.
  WeightLease<TableParams> lease_tables(LeaseFor use = LeaseFor::kInference);
  WeightLease<BlockParams> lease_block(size_t layer, LeaseFor use = LeaseFor::kInference);
  WeightLease<HeadParams> lease_head(LeaseFor use = LeaseFor::kInference);

  // Error: they were complete already in this micro-step.
  GradientScope<TableParams> table_gradients();
  GradientScope<BlockParams> block_gradients(size_t layer);
  GradientScope<HeadParams> head_gradients();

  // Allocates what training needs beside the weights; gradients begin as zeros.
  struct Training {
    Communicator* axis = nullptr;  // of the ranks that share a step; none: this rank alone
    bool accumulates = true;       // a step has several micro-steps
    Arena* optimizer = nullptr;    // of what the optimizer keeps; none: that of the weights
    Arena* gradients = nullptr;    // where they lie, in host memory; none: on the device
    Poison poison = Poison::kNo;   // of the buffers between which they are copied
    bool reduce_in_fp32 = false;   // bf16 gradients are summed over ranks in fp32
    Fp8Run fp8 = {};
  };
  void prepare_training(const Training& training);
  // Before the first lease of a step. FP8 copies are made now, or where a part may wait for ranks, with its
  // lease.
  void begin_step();
  struct MicroStep {
    bool first, last;  // of its step
  };
  void begin_micro_step(const MicroStep& micro_step);
  // Whether a backward has to add to the gradients of the micro-steps before; else the store adds them.
  bool accumulates_in_place(const MicroStep& micro_step) const;
  // Whether a micro-step communicates, or copies weights or gradients between host and device: then it cannot
  // run from a CUDA graph.
  bool communicates(const MicroStep& micro_step) const;
  // Waits until the gradients of all ranks are summed.
  void wait_for_gradients();

  // What an optimizer keeps under a name: masters, and a tensor of each bucket for each name that it adds.
  // They are undefined until clear_kept().
  void keep_masters();
  void keep(const std::string& name, DType dtype, StateOf of = StateOf::kAll);
  std::vector<std::string> kept_names() const;  // in the order of keeping
  // This rank's part of a bucket; under kMaster fp32 weights, or of bf16 weights the lower bits of their
  // masters. Of StateOf::kOthers the end of it alone, equally much on every rank: kept_from() on. Of kRows
  // all rows of its matrices. None where nothing is kept of the bucket. Error: an unknown name
  const Tensor& kept(const std::string& name, size_t bucket) const;
  // Of a tensor of kRows: where the rows of a matrix begin
  int64_t first_row(const ParamPlace& matrix) const;
  // The first of the bucket's elements of this rank's part that `kept` has
  int64_t kept_from(const Tensor& kept, size_t bucket) const;
  void clear_kept();

  // Of an update: each has a tensor for each bucket, none where all of it is frozen
  const std::vector<Tensor>& summed_gradients() const { return summed_; }  // this rank's part
  Tensor updated_weights(size_t bucket) const;                             // likewise
  std::vector<Tensor> tensors_of_norm() const;                             // all summed gradients
  // Error: a lease lives that would see weights change.
  void begin_update();
  // Says that this rank's part of a bucket is updated. Where weights are whole, starts to send it to all
  // ranks; later leases wait for theirs.
  void end_update(size_t bucket);

  // Takes the values of all parameters in fp32 or bf16, on the host or the device, and writes what is this
  // rank's of the optimizer's tensor of that name. A value of a row stands in each of its elements, on the
  // host. Masters: the weights as well, which are rounded from them, and they alone where none are kept.
  ParamSink writer(const std::string& name = kMaster);
  NormalSink normal_writer();  // the same
  // Whether writer(name) writes anything of a parameter: others need not be read.
  bool keeps(const std::string& name, const ParamPlace& place) const;

  // Calls use() with a reader of the parameters of a bucket: of those that are trained what is kept, under
  // kMaster and kWeight of all. A value of a row is read to each of its elements, on the host. Every rank has
  // to call it.
  void with_whole(const std::string& name, size_t bucket, const std::function<void(const ParamReader&)>& use);
  // The weights of a bucket, until the next lease or update. Every rank has to call it.
  const Tensor& whole_weights(size_t bucket);
  // A parameter of that bucket, until then; of what has FP8 values alone, these.
  Tensor whole_weight(const ParamPlace& place) const;

  const ModelConfig& model() const { return shape_.model; }
  DType dtype() const { return shape_.dtype; }
  const ParamLayout& layout() const { return layout_; }
  Part part() const { return part_; }  // this rank's, of what is split
  int64_t part_elements(size_t bucket) const { return layout_.buckets[bucket].trained / part_.count; }
  const Shards& shards() const { return shape_.shards; }
  Communicator& axis() const { return *axis_; }
  Fp8& fp8() { return present(fp8_); }
  const std::vector<Fp8Weight>& fp8_weights() const { return fp8_weights_; }  // that the store has

  // Whether all weights are on the device at once, so that leases of all of it can live together
  bool has_whole_weights() const { return !weight_turns_ && !other_form_; }
  // Whole views outside of any scope, after all that is under way: of files and tests. Error: they are split,
  // take turns on the device, or some weights have FP8 values alone.
  const Params& weights();
  Tensor weight(const ParamPlace& place);  // by its index
  const Grads& gradients() const;
  // "blocks.3.mlp.expand.weight", or "the gradient of " it: what this address of a weight or a gradient holds
  // now. Empty: none of them, or gathered for a part of the model that is not in its buffer any more
  std::string name_at(const void* address);
  const Params& weight_views() const { return weights_; }  // with values or without: shapes and addresses

 private:
  template <class Views>
  friend class GradientScope;
  struct Kept {
    std::string name;
    std::vector<Tensor> buckets;
    StateOf of = StateOf::kAll;
  };
  // What a rank has of a range of the values of a parameter
  struct Slice {
    int64_t first = 0;  // of the parameter
    Tensor own = {};    // none: nothing
  };
  struct Range {
    int64_t first, end;
  };
  // The parts of the model in the order of a forward: the tables, the blocks, the head
  int64_t position_of_head() const { return shape_.model.layers + 1; }
  size_t bucket_at(int64_t position) const;

  std::vector<Tensor> allocate(MemoryTag tag, const std::string& name, const Placement& placement) const;
  std::vector<Tensor> allocate_whole_gradients(Arena& arena) const;
  void allocate_gradients(const Training& training);
  void allocate_gradient_turns(const Training& training, DType of_sums);
  void allocate_sums(const Training& training, DType of_sums);
  void make_whole(int64_t position, LeaseFor use);
  void fetch(size_t bucket, LeaseFor use = LeaseFor::kInference);
  void fetch_fp8(size_t bucket);
  void make_whole_in_turn(int64_t position, LeaseFor use);
  const Params& views_for(LeaseFor use) const {
    return use == LeaseFor::kInference ? weights_ : training_weights_;
  }
  void gather(const Tensor& own, const Tensor& whole);
  void copy_from_host(const Tensor& own, const Tensor& to);
  void wait_for(const Turns::Turn& turn);
  void wait_for_weights();
  void make_fp8(int64_t layer);
  void allocate_fp8();
  void allocate_fp8_vectors();
  void make_form(size_t bucket, LeaseFor use);
  void round_trained_weights();
  void round_weights_of_ranks();
  void write_fp8(const ParamPlace& place, const std::function<void(const Tensor&)>& fill);
  void begin_gradients(size_t bucket);
  void end_gradients(size_t bucket);
  void fetch_gradients(size_t bucket);
  void take_gradient_turn(size_t bucket);
  void reduce(size_t bucket);
  void reduce_in_turn(size_t bucket);
  Tensor sums_in_turn(size_t bucket) const;
  void settle(size_t turn);
  Tensor own_weights(size_t bucket, bool trained) const;
  // The same of weights. low: none where there is no master, or another rank has its bits
  struct WeightSlice {
    int64_t first;
    Tensor own, low;
  };
  Slice slice_of(const Tensor& own, int64_t begins, const ParamPlace& place, Range range) const;
  Slice weight_slice(const ParamPlace& place, Range range) const;
  std::vector<WeightSlice> weight_slices(const ParamPlace& place, Range range) const;
  StateOf kept_of(const std::string& name) const;
  Slice kept_slice(const std::string& name, const ParamPlace& place, Range range) const;
  bool has_low_bits(const ParamPlace& place) const;  // on some rank
  Tensor gathered(const Tensor& mine);
  std::vector<Tensor> allocate_kept(const std::string& words, DType dtype, StateOf of = StateOf::kAll) const;
  void begin_writing();
  void write_weights(const ParamPlace& given, const Tensor& values);
  void write_kept(const std::string& name, const ParamPlace& given, const Tensor& values);

  Stream stream_;
  Arena& arena_;
  Arena* optimizer_arena_;
  Shape shape_;
  ParamLayout layout_;
  // This rank's parts of the weights, where they are split or on the host: trained, then frozen
  std::vector<Tensor> own_;
  std::optional<Turns> weight_turns_, gradient_turns_;  // where they are split, or weights on the host
  std::unique_ptr<CopyQueue> copies_;                   // of weights from the host
  Params weights_;
  std::unique_ptr<Communicator> alone_;  // of one rank
  Communicator* axis_;
  Part part_;
  std::optional<Fp8> fp8_;
  // What the store has in FP8: this rank's values, by bucket; where they take turns; the matrices
  std::vector<Tensor> own_fp8_;
  std::optional<Turns> fp8_turns_;
  std::vector<Fp8Weight> fp8_weights_;
  Tensor fp8_scales_, fp8_amaxes_;  // [1, S, kFp8ScaleStride], [ranks, 1, S] fp32
  Tensor other_form_;               // room for the matrices of a part, transposed or in dtype()
  size_t other_form_of_ = Turns::kNobody;
  std::vector<Tensor> fp8_vectors_;  // by bucket, of trained weights in FP8: what has no weight decay
  Params training_weights_;          // views with these
  std::vector<bool> fp8_is_old_;     // of each block and the head: the copies are those of the step before
  Grads gradients_;
  std::vector<Tensor> summed_;
  Tensor sums_;  // fp32, room for a bucket; only where bf16 gradients are summed in fp32
  // By turn: sums over ranks that are not yet added, or not yet on the host; room to add them to those of the
  // micro-steps before, where these are on the host
  std::vector<Tensor> added_, fetched_;
  std::unique_ptr<HostCopies> gradient_copies_;  // where gradients lie in host memory
  std::vector<Tensor> accumulated_;  // there, of this rank's micro-steps, where they are not split
  std::vector<Kept> kept_;
  std::vector<int64_t> gathers_;  // how many collectives the weights of a bucket wait for; 0: none
  std::vector<int> scopes_left_;  // of a bucket's gradients in this micro-step
  MicroStep micro_step_{};
  bool fetches_ahead_ = false;   // gradients for the backward of this micro-step, from its forward
  std::vector<int64_t> leases_;  // that live, of each bucket
  int64_t position_ = 0;         // of the last lease
  bool moves_forward_ = true;    // the direction of travel
};

template <class Views>
void GradientScope<Views>::end() {
  if (ParamStore* store = std::exchange(store_, nullptr)) store->end_gradients(bucket_);
}

}  // namespace tessera

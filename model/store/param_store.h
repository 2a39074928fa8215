// ParamStore: the owner of a model's weights (WeightHome) and, in training, of their gradients
// (GradientHome) and of what the update rule keeps for them (KeptState). All lie in buckets (ParamLayout):
// one for each block, and one for what is outside them.
//
// The model asks for a part of itself, the tables, a block or the head, and has whole views for a scope.
// It never knows where the values were before, or where they go after: a lease gives the weights, a
// gradient scope the gradients.
//
// What the ranks split among them is Shards; each has one of R equal parts of every bucket. Without R > 1
// everything is whole. A rank updates its part of the weights, and a bucket is gathered while the next one
// is updated.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "model/init.h"
#include "model/store/gradient_home.h"
#include "model/store/kept_state.h"

namespace tessera {

// Writes the values of a parameter to `to`, fp32 on the host or the device.
using ParamReader = std::function<void(const ParamPlace& place, const Tensor& to)>;

class ParamStore {
 public:
  // What training needs beside the weights
  struct Training {
    GradientHome::Place gradients = {};
    Arena* kept = nullptr;  // where what the update rule keeps lies; none: on the device
  };
  // How the store lies among the ranks and in memory
  struct Homes {
    Shards shards = {};
    Communicator* axis = nullptr;      // of the ranks that split the parameters; none: this rank only
    Communicator* replicas = nullptr;  // of those that have the same part; none: this rank only
    Freeze freeze = {};
    Fp8Config fp8 = {};  // of the training steps
    WeightHome::Place weights = {};
    std::optional<Training> training = {};
  };
  struct Shape {
    ModelConfig model;
    DType dtype = DType::kF32;
    Homes homes = {};
  };
  // Allocates; weights and gradients begin as zeros.
  ParamStore(const Stream& stream, Arena& arena, const Shape& shape);
  ParamStore(const ParamStore&) = delete;

  // Where weights are split, every rank leases the same parts in the same order. Error: a lease of another
  // block lives in the part's buffer.
  WeightLease<TableParams> lease_tables(LeaseFor use = LeaseFor::kInference);
  WeightLease<BlockParams> lease_block(size_t layer, LeaseFor use = LeaseFor::kInference);
  WeightLease<HeadParams> lease_head(LeaseFor use = LeaseFor::kInference);

  // Error: they were complete already in this micro-step.
  GradientScope<TableParams> table_gradients();
  GradientScope<BlockParams> block_gradients(size_t layer);
  GradientScope<HeadParams> head_gradients();

  // Before the first lease of a step
  void begin_step();
  // Whether a micro-step communicates, or copies weights or gradients between host and device: then it
  // cannot run from a CUDA graph.
  bool communicates(const MicroStep& micro_step) const;

  WeightHome& weight_home() { return *weights_; }
  const WeightHome& weight_home() const { return *weights_; }
  GradientHome& gradient_home() const;  // Error: the store is not for training
  KeptState& kept() { return kept_; }
  const KeptState& kept() const { return kept_; }

  // Takes the values of all parameters in fp32 or bf16, on the host or the device, and writes what is this
  // rank's of the kept tensor of that name (KeptState::write). Masters: the weights as well, which are
  // rounded from them, and they alone where none are kept.
  ParamSink writer(const std::string& name = kMaster);
  NormalSink normal_writer();  // the same
  // For a parameter that is kOnly: values on the host that have the store's format already
  void write_stored(const ParamPlace& place, const StoredValues& values);
  // Whether writer(name) writes anything of a parameter: others need not be read.
  bool keeps(const std::string& name, const ParamPlace& place) const;

  // Calls use() with a reader of the parameters of a bucket: of those that are trained what is kept, under
  // kMaster and kWeight of all. A value of a row is read to each of its elements, on the host. Every rank
  // has to call it.
  void with_whole(const std::string& name, size_t bucket, const std::function<void(const ParamReader&)>& use);

  const ModelConfig& model() const { return setting_.model; }
  DType dtype() const { return setting_.dtype; }
  const ParamLayout& layout() const { return setting_.layout; }
  Part part() const { return setting_.part; }  // this rank's, of what is split
  int64_t part_elements(size_t bucket) const { return setting_.part_elements(bucket); }
  const Shards& shards() const { return setting_.shards; }
  Communicator& axis() const { return setting_.axis; }

  // Whether all weights are on the device at once, so that leases of all of it can live together
  bool has_whole_weights() const { return !weights_->takes_turns() && !weights_->forms().has_only(); }
  // Whole views outside of any scope, after all that is under way: of files and tests. Error: they are
  // split, take turns on the device, or some weights have FP8 values alone.
  const Params& weights();
  Tensor weight(const ParamPlace& place);  // by its index
  // "blocks.3.mlp.expand.weight", or "the gradient of " it: what this address of a weight or a gradient
  // holds now. Empty: none of them, or gathered for a part of the model that is not in its buffer any more
  std::string name_at(const void* address);

 private:
  void write_weights(const ParamPlace& given, const Tensor& values);
  Tensor gathered(const Tensor& mine);

  std::unique_ptr<Communicator> alone_;  // of one rank
  StoreSetting setting_;
  std::unique_ptr<WeightHome> weights_;
  std::unique_ptr<GradientHome> gradients_;  // null: the store is not for training
  KeptState kept_;
};

}  // namespace tessera

// ParamStore: the owner of a model's weights (WeightHome) and, in training, of their gradients (GradientHome)
// and of what the update rule keeps for them (KeptState). All of them are stored in buckets (ParamLayout):
// one for each block, and others for what is outside the blocks.
//
// The model asks for a part of itself (the tables, a block or the head) and gets whole views for a scope: a
// lease gives the weights, a gradient scope the gradients. It never knows where the values were before, or
// where they go afterwards.
//
// Shards says what the ranks split among them; each of R ranks has one of R equal parts of every bucket. With
// R = 1 everything is whole. A rank updates its part of the weights, and a bucket is gathered while the next
// one is updated.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "model/init.h"
#include "model/store/gradient_home.h"
#include "model/store/kept_state.h"

namespace tessera {

// Writes the values of a parameter to `to`, which is fp32 on the host or the device.
using ParamReader = std::function<void(const ParamPlace& place, const Tensor& to)>;

class ParamStore {
 public:
  // What training needs beside the weights
  struct Training {
    GradientHome::Place gradients = {};
    Arena* kept = nullptr;  // the memory for what the update rule keeps; null: the device's
  };
  // How the store is divided among ranks, and where in memory it lies
  struct Homes {
    Shards shards = {};
    Communicator* axis = nullptr;      // of the ranks that split the parameters; null: this rank only
    Communicator* replicas = nullptr;  // of the ranks that have the same part; null: this rank only
    Freeze freeze = {};
    Fp8Config fp8 = {};  // for the training steps
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

  // If weights are split, every rank has to lease the same parts in the same order. Error: a lease of another
  // block lives that has the buffer of this part.
  WeightLease<TableParams> lease_tables(LeaseFor use = LeaseFor::kInference);
  WeightLease<BlockParams> lease_block(size_t layer, LeaseFor use = LeaseFor::kInference);
  WeightLease<HeadParams> lease_head(LeaseFor use = LeaseFor::kInference);

  // Error: these gradients were already complete in this micro-step.
  GradientScope<TableParams> table_gradients();
  GradientScope<BlockParams> block_gradients(size_t layer);
  GradientScope<HeadParams> head_gradients();

  // Call it before the first lease of a step.
  void begin_step();
  // Whether a micro-step communicates, or copies weights or gradients between host and device: it then cannot
  // run from a CUDA graph.
  bool communicates(const MicroStep& micro_step) const;

  WeightHome& weight_home() { return *weights_; }
  const WeightHome& weight_home() const { return *weights_; }
  GradientHome& gradient_home() const;  // Error: the store is not for training
  KeptState& kept() { return kept_; }
  const KeptState& kept() const { return kept_; }

  // Returns a sink for the values of all parameters, in fp32 or bf16, on the host or the device. It writes
  // this rank's values to the kept tensor of that name (KeptState::write). With kMaster it also writes the
  // weights, which are rounded from the masters; if no masters are kept it writes only the weights.
  ParamSink writer(const std::string& name = kMaster);
  NormalSink normal_writer();  // the same for values that are drawn from a normal distribution
  // For a parameter that is kOnly: values on the host that have the store's format already
  void write_stored(const ParamPlace& place, const StoredValues& values);
  // Whether writer(name) writes anything for a parameter: if not, the parameter need not be read.
  bool keeps(const std::string& name, const ParamPlace& place) const;

  // Calls use() with a reader for the parameters of a bucket. It can read the trained parameters for which
  // the name is kept; with kMaster and kWeight it can read all. A value of a row is read to each element of
  // the row, on the host. Every rank has to call this.
  void with_whole(const std::string& name, size_t bucket, const std::function<void(const ParamReader&)>& use);

  const ModelConfig& model() const { return setting_.model; }
  DType dtype() const { return setting_.dtype; }
  const ParamLayout& layout() const { return setting_.layout; }
  Part part() const { return setting_.part; }  // this rank's part of what is split
  int64_t part_elements(size_t bucket) const { return setting_.part_elements(bucket); }
  const Shards& shards() const { return setting_.shards; }
  Communicator& axis() const { return setting_.axis; }

  // Whether all weights are on the device at once, so that leases of all parts can live together
  bool has_whole_weights() const { return !weights_->takes_turns() && !weights_->forms().has_only(); }
  // Whole views outside of any scope, for files and tests; waits for all that is under way. Error: the
  // weights are split or take turns on the device, or some have only FP8 values.
  const Params& weights();
  Tensor weight(const ParamPlace& place);  // found by place.index
  // The weight or gradient that is at an address now: "blocks.3.mlp.expand.weight", or that after "the
  // gradient of ". "": no weight or gradient is there, or it was gathered for a part of the model that is no
  // longer in its buffer
  std::string name_at(const void* address);

 private:
  void write_weights(const ParamPlace& given, const Tensor& values);
  Tensor gathered(const Tensor& mine);

  std::unique_ptr<Communicator> alone_;  // a communicator of one rank
  StoreSetting setting_;
  std::unique_ptr<WeightHome> weights_;
  std::unique_ptr<GradientHome> gradients_;  // null: the store is not for training
  KeptState kept_;
};

}  // namespace tessera

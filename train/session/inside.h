// Inside: figures of what goes on inside a model, every train.inside_every steps of training.
//
// The norms are those of an update. Before the update changes anything, an operation reads the same values as
// the update, and sums the squares of each parameter's weights, gradients and updates. If ranks split the
// optimizer, each sums over its own elements, and the sums are gathered. A forward's figures are sampled in a
// rank's first micro-batch (Probe), by operations next to attention and the MLP. The largest score of each
// head is the exception: it covers all tokens and belongs to TrainState. Other steps do none of this. No step
// waits for the figures: they are fetched in the same way as losses.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "model/fp8.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "train/session/host_tensors.h"

namespace tessera {

// The figures of one step. A "part" is the kind of linear layer, table or norm that parameters belong to:
// "attention.qkv", "norms", "token_table".
struct InsideFigures {
  struct Norms {
    double weight = 0, update = 0;
    double gradient = 0;  // as the update uses it: after clipping
  };
  struct Part {
    std::string name;
    std::vector<Norms> layers;  // by layer; one outside of the blocks. NaN where a block trains no such part
  };
  std::vector<Part> parts;  // the parts that are trained, in the order of a forward
  // By layer and head, over all tokens of the step: see LargestScores
  std::vector<std::vector<double>> largest_scores = {};
  // By layer, of this rank's first micro-batch: the mean entropy over the heads, in nats; the share of the
  // MLP's units that are dead. See AttentionSample, DeadUnits
  std::vector<double> attention_entropy, dead_units;
  // The same for blocks with experts, NaN for other blocks: the mean entropy of the router's probabilities,
  // in nats; the share of experts without a token; and the load of each expert. See RouterSample
  std::vector<double> router_entropy = {}, dead_experts = {};
  std::vector<std::vector<double>> expert_load = {};  // empty for a block without experts
  // The same for each linear layer in FP8: the shares of the elements of x and of dy that were cut off. See
  // CountSaturated
  struct Saturated {
    std::string name;           // "attention.qkv", "head"
    std::vector<double> x, dy;  // by layer; one outside of the blocks. NaN where a block's layer is not in
                                // FP8
  };
  std::vector<Saturated> saturated = {};
};

// The part that a parameter belongs to: its name without the block and without "weight" or "bias". All norms
// of a block are one part; the two matrices of an adapter are two.
std::string part_of(const ParamInfo& info);

class Inside {
 public:
  // `rows`: N, of a micro-batch. `in_fp8`: the layers that are multiplied in FP8
  Inside(const Stream& stream, Arena& arena, Arena& host, ParamStore& store, int64_t rows,
         std::vector<Fp8Place> in_fp8);

  const Probe& probe() const { return probe_; }  // for the first micro-batch
  Tensor norms() const;                          // for Optimizer::update()
  void gather();                                 // call it after the update, on every rank
  // The figures of the last gather(), except the largest scores. Waits until they are known.
  InsideFigures figures();

 private:
  InsideFigures sampled();  // all figures but the norms
  void add_experts(InsideFigures& to);
  void add_saturated(InsideFigures& to);

  Stream stream_;
  ParamStore& store_;
  int64_t rows_;
  int64_t trained_;  // the number of trained parameters
  std::vector<Fp8Place> in_fp8_;
  Probe probe_;
  FetchedTensor sums_;  // [parts, trained_, 3]
  FetchedTensor entropies_, dead_units_;
  std::optional<FetchedTensor> expert_loads_, router_entropies_;  // with experts
  std::optional<FetchedTensor> saturated_;                        // with layers in FP8
};

}  // namespace tessera

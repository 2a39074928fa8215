// Inside: what goes on inside a model, at every so many steps of training (train.inside_every).
//
// Norms are those of an update: before it changes anything, an operation reads what it will read, and
// sums the squares of weights, gradients and updates of each parameter. Where ranks split the optimizer each
// has the sums of its elements, which are gathered. What a forward does is sampled in a rank's first
// micro-batch (Probe), by operations beside attention and the MLP; only the largest score of each head is of
// all tokens, and TrainState's. Other steps have none of these, and no step waits for them: they are fetched
// as losses are.
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

// Of one step. A part is what the parameters of a linear layer, a table or a norm are: "attention.qkv",
// "norms", "token_table".
struct InsideFigures {
  struct Norms {
    double weight = 0, update = 0;
    double gradient = 0;  // as the update takes it: after clipping
  };
  struct Part {
    std::string name;
    std::vector<Norms> layers;  // outside of the blocks: one. NaN where a block trains no such part
  };
  std::vector<Part> parts;  // those that are trained, in the order of a forward
  // Of all tokens of the step, by layer and head: see LargestScores
  std::vector<std::vector<double>> largest_scores = {};
  // Of this rank's first micro-batch, by layer. In nats, the mean over the heads; the share of units of the
  // MLP: see AttentionSample, DeadUnits
  std::vector<double> attention_entropy, dead_units;
  // Likewise, with experts, NaN where a block has none: the mean entropy of the router's probabilities, in
  // nats; the share of experts without a token; and the load of each expert, see RouterSample
  std::vector<double> router_entropy = {}, dead_experts = {};
  std::vector<std::vector<double>> expert_load = {};  // empty where a block has none
  // Likewise, of a linear layer in FP8: the shares of x and of dy that were cut off, see CountSaturated
  struct Saturated {
    std::string name;           // "attention.qkv", "head"
    std::vector<double> x, dy;  // by layer; outside of the blocks: one. NaN where a block's is not in FP8
  };
  std::vector<Saturated> saturated = {};
};

// The part of a parameter: its name without the block and without "weight" or "bias". All norms of a block
// are one part; the matrices of an adapter are two.
std::string part_of(const ParamInfo& info);

class Inside {
 public:
  // `rows`: of a micro-batch, N. `in_fp8`: the layers that are multiplied in FP8
  Inside(const Stream& stream, Arena& arena, Arena& host, ParamStore& store, int64_t rows,
         std::vector<Fp8Place> in_fp8);

  const Probe& probe() const { return probe_; }  // of the first micro-batch
  Tensor norms() const;                          // for Optimizer::update()
  void gather();                                 // after it; every rank calls it
  // Of the last gather(), but for the largest scores. Waits until they are known.
  InsideFigures figures();

 private:
  InsideFigures sampled();  // without norms
  void add_experts(InsideFigures& to);
  void add_saturated(InsideFigures& to);

  Stream stream_;
  ParamStore& store_;
  int64_t rows_;
  int64_t trained_;  // parameters
  std::vector<Fp8Place> in_fp8_;
  Probe probe_;
  FetchedTensor sums_;  // [parts, trained_, 3]
  FetchedTensor entropies_, dead_units_;
  std::optional<FetchedTensor> expert_loads_, router_entropies_;  // with experts
  std::optional<FetchedTensor> saturated_;                        // with layers in FP8
};

}  // namespace tessera

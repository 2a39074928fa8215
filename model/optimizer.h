// Optimizer: steps of an update rule over the parameters of a store, with clipping by the global norm of
// the gradients. Where the store is split, each rank updates its part of every bucket, and the others
// theirs.
#pragma once

#include <optional>

#include "model/muon.h"
#include "model/store/param_store.h"
#include "model/update_rule.h"

namespace tessera {

class Optimizer {
 public:
  // The store keeps masters and the rule's tensors from now on.
  Optimizer(Arena& arena, ParamStore& store, UpdateRule rule);

  // Writes the norm of this rank's part of the summed gradients to its place in grad_norms().
  void measure(const Stream& stream);
  void share_norms();  // over the ranks; every rank calls it
  // Updates this rank's part of the weights, by grad_norms() of all parts, and starts to gather them.
  // `number` counts updates from 1; `verdict` of JudgeStep says whether this one is made.
  struct Update {
    const OptimizerConfig& config;
    double learning_rate;
    int64_t number;
    Tensor verdict = {};
    // [parameters, 3]: what the update does to every trained parameter, in the order of the layout's places:
    // the sums of squares of AdamWNorms, over the elements of this rank's part. None: not asked.
    // Error: the rule cannot tell.
    Tensor norms = {};
  };
  void update(const Stream& stream, const Update& update);
  const UpdateRule& rule() const { return rule_; }
  const Tensor& grad_norms() const { return grad_norms_; }  // [parts] fp32, before clipping

 private:
  void measure_update(const Stream& stream, const Update& update) const;  // but for what Muon updates
  UpdateStep step_of(const Update& update) const;
  // This rank's part of a bucket: the matrices that Muon updates, or everything else
  enum class Elements : uint8_t { kMatrices, kOthers };
  UpdatedPart part_of(size_t bucket, const OptimizerConfig& config, Elements which) const;

  ParamStore& store_;
  UpdateRule rule_;
  Tensor grad_norms_;
  std::optional<Muon> muon_;
};

}  // namespace tessera

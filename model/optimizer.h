// Optimizer: steps of an update rule over the parameters of a store, with clipping by the global norm of the
// gradients. If the store is split, each rank updates its part of every bucket.
#pragma once

#include <memory>
#include <vector>

#include "model/store/param_store.h"
#include "model/update_rule.h"

namespace tessera {

class Optimizer {
 public:
  // From now on the store keeps masters and the tensors of the rule.
  Optimizer(Arena& arena, ParamStore& store, UpdateRule rule);

  // Writes the norm of this rank's part of the summed gradients to its place in grad_norms().
  void measure(const Stream& stream);
  void share_norms();  // exchanges them between ranks; every rank has to call it
  // Updates this rank's part of the weights, by the grad_norms() of all parts, and starts to gather the
  // weights. `number` counts updates from 1. `verdict`, from JudgeStep, says whether this update is made.
  struct Update {
    const OptimizerConfig& config;
    double learning_rate;
    int64_t number;
    Tensor verdict = {};
    // [parameters, 3]: written, for every trained parameter in the order of the layout's places: the sums of
    // squares of AdamWNorms over the elements of this rank's part. None: not wanted. Error: the rule cannot
    // tell.
    Tensor norms = {};
    // [ranks, layers, heads] of LargestScores: after the update, heads whose largest score was above
    // `most_score` are clipped, see ClipHeads. None: no head is clipped.
    Tensor largest_scores = {};
    double most_score = 0;
  };
  void update(const Stream& stream, const Update& update);
  const UpdateRule& rule() const { return rule_; }
  const Tensor& grad_norms() const { return grad_norms_; }  // [parts] fp32, before clipping

 private:
  void measure_update(const Stream& stream, const Update& update) const;  // except for whole matrices
  // Clips heads in this rank's part of a bucket, after the update of the bucket.
  void clip_heads(const Stream& stream, const Update& update, size_t bucket) const;
  UpdateStep step_of(const Update& update) const;
  // The elements of a group in this rank's part of a bucket, as indices among the trained elements of the
  // bucket
  struct Elements {
    int64_t first = 0, end = 0;
    int64_t count() const { return end - first; }
  };
  Elements find_elements(size_t bucket, const ParamGroup& group) const;
  // `group`: the index among the rule's groups
  UpdatedPart part_of(size_t bucket, const OptimizerConfig& config, size_t group) const;

  ParamStore& store_;
  UpdateRule rule_;
  Tensor grad_norms_;
  std::vector<std::vector<Elements>> elements_;          // by group and bucket
  std::vector<std::unique_ptr<MatrixUpdate>> matrices_;  // of groups that need whole ones
};

}  // namespace tessera

// Optimizer: steps of an update rule over the parameters of a store, with clipping by the global norm of
// the gradients. Where the store is split, each rank updates its part of every bucket, and the others
// theirs.
#pragma once

#include <memory>
#include <vector>

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
    // [ranks, layers, heads] of LargestScores: afterwards the heads whose largest score was above
    // `most_score` are clipped, see ClipHeads. None: none are.
    Tensor largest_scores = {};
    double most_score = 0;
  };
  void update(const Stream& stream, const Update& update);
  const UpdateRule& rule() const { return rule_; }
  const Tensor& grad_norms() const { return grad_norms_; }  // [parts] fp32, before clipping

 private:
  void measure_update(const Stream& stream, const Update& update) const;  // but for whole matrices
  // In this rank's part of a bucket, after its update
  void clip_heads(const Stream& stream, const Update& update, size_t bucket) const;
  UpdateStep step_of(const Update& update) const;
  // The elements of a group in this rank's part of a bucket: trained elements of the bucket
  struct Elements {
    int64_t first = 0, end = 0;
    int64_t count() const { return end - first; }
  };
  Elements find_elements(size_t bucket, const ParamGroup& group) const;
  // `group`: its place in the rule's groups
  UpdatedPart part_of(size_t bucket, const OptimizerConfig& config, size_t group) const;

  ParamStore& store_;
  UpdateRule rule_;
  Tensor grad_norms_;
  std::vector<std::vector<Elements>> elements_;          // by group and bucket
  std::vector<std::unique_ptr<MatrixUpdate>> matrices_;  // of groups that need whole ones
};

}  // namespace tessera

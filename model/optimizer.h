// Optimizer: what an update rule keeps for all parameters, fp32 masters, clipping by the global norm of the
// gradients.
//
// The optimizer may hold one of several equal parts of every bucket: it then updates that part of the
// weights, and other ranks hold and update the rest (ZeRO stage 1, Rajbhandari et al., arXiv:1910.02054).
#pragma once

#include <span>
#include <string>

#include "kernels/stream.h"
#include "model/init.h"
#include "model/update_rule.h"

namespace tessera {

inline constexpr const char* kMaster = "master";  // the name of the fp32 weights, beside those of the rule

struct Part {
  int64_t index = 0, count = 1;
  // This part of a bucket
  Tensor of(const Tensor& bucket) const {
    const int64_t each = bucket.shape[0] / count;
    return bucket.rows(index * each, each);
  }
};

class Optimizer {
 public:
  // Allocates the rule's tensors, and masters if the weights are not fp32 themselves. Contents are undefined
  // until clear(). `weights` have the layout of `freeze`; their trained elements are cut in part.count parts.
  // Error: several parts, and the rule needs whole matrices.
  struct Shape {
    ModelConfig model;
    UpdateRule rule = adamw();
    Part part = {};
    Freeze freeze = {};
  };
  Optimizer(Arena& arena, const Params& weights, const Shape& shape);

  void clear(const Stream& stream);  // masters and the rule's tensors to zero
  // Both accept all values and keep their part of the trained; values may be on the device.
  ParamSink writer(const Stream& stream, const std::string& name);
  NormalSink normal_writer(const Stream& stream);  // of the masters, which clear() has set to zero

  // Writes the norm of this part's gradients to its place in grad_norms(). One tensor a bucket, none where
  // all of it is frozen.
  void measure(const Stream& stream, std::span<const Tensor> gradients);
  // Updates this part of some buckets, by grad_norms() of all parts. `gradients` as of measure(); `step`
  // counts from 1.
  void update(const Stream& stream, std::span<const size_t> buckets, std::span<const Tensor> gradients,
              const OptimizerConfig& config, double learning_rate, int64_t step);

  const ParamLayout& layout() const { return layout_; }
  Part part() const { return shape_.part; }
  const UpdateRule& rule() const { return shape_.rule; }
  std::vector<std::string> names() const;  // of all that is kept: kMaster, and the rule's
  // This part of a bucket. None where all of the bucket is frozen. Error: an unknown name
  const Tensor& kept(const std::string& name, size_t bucket) const;
  const Tensor& grad_norms() const { return grad_norms_; }  // [parts] fp32, before clipping
  // Views of the fp32 weights. Error: this is one part of several, or some are frozen
  Params masters() const;

 private:
  // What this part keeps of the first `count` values of a parameter
  struct Slice {
    int64_t first = 0;  // of the parameter
    Tensor kept = {};   // none: nothing
  };
  Slice slice_of(const ParamPlace& place, int64_t count, const std::string& name) const;

  Shape shape_;
  ParamLayout layout_;
  Params weights_;
  std::vector<Tensor> masters_;  // if the weights are fp32, their part of them
  std::vector<Tensor> state_;    // [bucket][the rule's tensors]
  Tensor grad_norms_;
};

}  // namespace tessera

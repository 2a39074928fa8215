// AdamW over all parameters: moments, fp32 masters, clipping by the global norm of the gradients.
//
// The optimizer may hold one of several equal parts of every bucket: it then updates that part of the
// weights, and other ranks hold and update the rest (ZeRO stage 1, Rajbhandari et al., arXiv:1910.02054).
#pragma once

#include <span>

#include "kernels/stream.h"
#include "model/init.h"

namespace tessera {

struct OptimizerConfig {
  double beta1, beta2, epsilon;
  double weight_decay;      // of matrices; norms and biases do not decay
  double max_grad_norm;     // 0: no clipping
  uint64_t random_key = 0;  // for moments in bf16, see AdamW
};

// The values that the optimizer keeps for every parameter
enum class Kept { kMaster, kFirstMoment, kSecondMoment };
inline constexpr Kept kAllKept[] = {Kept::kMaster, Kept::kFirstMoment, Kept::kSecondMoment};

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
  // Allocates moments, fp32 or bf16, and masters if the weights are not fp32 themselves. Contents are
  // undefined until clear(). `weights` have the layout of `freeze`; their trained elements are cut in
  // part.count parts.
  Optimizer(Arena& arena, const ModelConfig& model, const Params& weights, DType moments, Part part = {},
            const Freeze& freeze = {});

  void clear(const Stream& stream);  // masters and moments to zero
  // Both accept all values and keep their part of the trained; values may be on the device.
  ParamSink writer(const Stream& stream, Kept kept);
  NormalSink normal_writer(const Stream& stream);  // of the masters, which clear() has set to zero

  // Writes the norm of this part's gradients to its place in grad_norms(). One tensor a bucket, none where
  // all of it is frozen.
  void measure(const Stream& stream, std::span<const Tensor> gradients);
  // Updates this part of some buckets, by grad_norms() of all parts. `gradients` as of measure(); `step`
  // counts from 1.
  void update(const Stream& stream, std::span<const size_t> buckets, std::span<const Tensor> gradients,
              const OptimizerConfig& config, double learning_rate, int64_t step);

  const ParamLayout& layout() const { return layout_; }
  Part part() const { return part_; }
  const std::vector<Tensor>& kept(Kept kept) const;         // this part of every bucket; may be empty
  const Tensor& grad_norms() const { return grad_norms_; }  // [parts] fp32, before clipping
  // Views of the fp32 weights. Error: this is one part of several, or some are frozen
  Params masters() const;

 private:
  // What this part keeps of the first `count` values of a parameter
  struct Slice {
    int64_t first = 0;  // of the parameter
    Tensor kept = {};   // none: nothing
  };
  Slice slice_of(const ParamPlace& place, int64_t count, Kept kept) const;

  ParamLayout layout_;
  ModelConfig model_;
  Params weights_;
  Part part_;
  std::vector<Tensor> masters_, m_, v_;  // if the weights are fp32, the masters are their part of them
  Tensor grad_norms_;
};

}  // namespace tessera

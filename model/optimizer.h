// AdamW over all parameters: moments, fp32 masters, clipping by the global norm of the gradients.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "model/params.h"

namespace tessera {

struct OptimizerConfig {
  double beta1, beta2, epsilon;
  double weight_decay;      // of matrices; norms and biases do not decay
  double max_grad_norm;     // 0: no clipping
  uint64_t random_key = 0;  // for moments in bf16, see AdamW
};

class Optimizer {
 public:
  // Moments, fp32 or bf16, and masters if the weights are not fp32 themselves. Contents are undefined until
  // reset() or a checkpoint.
  Optimizer(Arena& arena, const ModelConfig& model, const Params& weights, DType moments);

  void reset(Backend& be);            // moments to zero
  void weights_changed(Backend& be);  // after masters() were written: rounds them into the weights

  // Computes the norm of the gradients, then updates weights. `step` counts from 1.
  void step(Backend& be, const Grads& grads, const OptimizerConfig& config, double learning_rate,
            int64_t step);

  const Params& masters() const { return masters_; }  // fp32: the weights themselves where those are fp32
  const Params& first_moments() const { return m_; }
  const Params& second_moments() const { return v_; }
  const Tensor& grad_norm() const { return grad_norm_; }  // [1] fp32, of the last step, before clipping

 private:
  ModelConfig model_;
  Params weights_, masters_, m_, v_;
  Tensor grad_norm_;
};

}  // namespace tessera

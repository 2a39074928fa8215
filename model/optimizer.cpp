#include "model/optimizer.h"

namespace tessera {
namespace {

std::vector<Tensor> list(const Params& params, const ModelConfig& config) {
  std::vector<Tensor> tensors;
  for_each_param(params, config, [&](const ParamInfo&, const Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

}  // namespace

Optimizer::Optimizer(Arena& arena, const ModelConfig& model, const Params& weights, DType moments)
    : model_(model), weights_(weights), masters_(weights) {
  const auto take = [&](const char* kind, DType dtype) {
    return allocate_params(arena, MemoryTag::kOptimizer, kind, dtype, model);
  };
  if (weights.token_table.dtype != DType::kF32) masters_ = take("master", DType::kF32);
  m_ = take("first moment", moments);
  v_ = take("second moment", moments);
  grad_norm_ = arena.alloc(MemoryTag::kOptimizer, "gradient norm", DType::kF32, {1});
}

void Optimizer::reset(Backend& be) {
  for (const Params& moments : {m_, v_})
    for (const Tensor& tensor : list(moments, model_)) be.fill_zero(tensor);
}

void Optimizer::weights_changed(Backend& be) {
  if (weights_.token_table.dtype == DType::kF32) return;
  const std::vector<Tensor> masters = list(masters_, model_), weights = list(weights_, model_);
  for (size_t i = 0; i < masters.size(); ++i) be.copy(masters[i], weights[i]);
}

void Optimizer::step(Backend& be, const Grads& grads, const OptimizerConfig& config, double learning_rate,
                     int64_t step) {
  const std::vector<Tensor> g = list(grads, model_), p = list(weights_, model_),
                            master = list(masters_, model_), m = list(m_, model_), v = list(v_, model_);
  be.global_norm({.tensors = g, .norm = grad_norm_});
  size_t i = 0;
  // Elements are counted through all parameters, whose sizes are multiples of C and so of 8.
  int64_t first_element = 0;
  for_each_param(weights_, model_, [&](const ParamInfo& info, const Tensor& param) {
    const bool has_master = param.dtype != DType::kF32;
    be.adamw({.param = p[i],
              .master = has_master ? master[i] : Tensor{},
              .grad = g[i],
              .m = m[i],
              .v = v[i],
              .grad_norm = grad_norm_,
              .max_norm = config.max_grad_norm,
              .learning_rate = learning_rate,
              .beta1 = config.beta1,
              .beta2 = config.beta2,
              .epsilon = config.epsilon,
              .weight_decay = info.decay ? config.weight_decay : 0.0,
              .step = step,
              .random_key = config.random_key,
              .first_element = first_element});
    first_element += param.numel();
    ++i;
  });
}

}  // namespace tessera

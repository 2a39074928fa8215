// A norm over the channels of each row: LayerNorm (Ba et al., arXiv:1607.06450) or RMSNorm (Zhang and
// Sennrich, arXiv:1910.07467).
#pragma once

#include "model/part.h"

namespace tessera {

struct NormWeights {
  Tensor weight, bias;  // [C] [C]; an RMSNorm has no bias
};

// RMSNorm has no mean.
struct NormSaved {
  Tensor y, mean, rstd;  // [N, C] [N] [N]
};

template <class W, class V>
void visit_norm_weights(W& norm, const ModelConfig& config, const V& visitor) {
  visitor.vector("weight", config.channels, Init::kOne, norm.weight);
  if (config.norm == NormKind::kLayerNorm) visitor.vector("bias", config.channels, Init::kZero, norm.bias);
}

// `names` of y, mean and rstd
template <class S, class Visit>
void visit_norm_saved(S& norm, const ModelConfig& config, int64_t N, DType dtype, Stage stage,
                      const std::array<const char*, 3>& names, Visit&& visit) {
  visit(SavedInfo{stage, names[0], dtype, {N, config.channels}}, norm.y);
  if (config.norm == NormKind::kLayerNorm) visit(SavedInfo{stage, names[1], DType::kF32, {N}}, norm.mean);
  visit(SavedInfo{stage, names[2], DType::kF32, {N}}, norm.rstd);
}

// `fp8_y`, or none, gets y in FP8 as well.
void norm_forward(const Stream& stream, const ModelConfig& config, const NormWeights& w, const Tensor& x,
                  const NormSaved& s, const Fp8Output& fp8_y);

// `linear` of the norm of its x
void norm_first(const ModelConfig& config, const NormWeights& w, const NormSaved& s, FusedLinear& linear);

// s.y holds the gradient of y. dx = add + the gradient of x; add may be dx itself, or none. dx_sum, or none,
// is the gradient of the last bias that was added to x: it gets the sum of dx's rows. fp8_dx, or none, gets
// dx in FP8 as well.
void norm_backward(const Stream& stream, const ModelConfig& config, const NormWeights& w, const Tensor& x,
                   const NormSaved& s, const NormWeights& gradients, const Tensor& dx, const Tensor& add,
                   const Tensor& dx_sum, const Fp8Output& fp8_dx, bool accumulate);

}  // namespace tessera

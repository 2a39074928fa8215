// A norm over the channels of each row: LayerNorm (Ba et al., arXiv:1607.06450) or RMSNorm (Zhang and
// Sennrich, arXiv:1910.07467).
#pragma once

#include "kernels/stream.h"
#include "model/part.h"

namespace tessera {

struct NormWeights {
  Tensor weight, bias;  // [C] [C]; an RMSNorm has no bias
};

// RMSNorm has no mean.
struct NormSaved {
  Tensor y, mean, rstd;  // [N, C] [N] [N]
};

inline Init norm_init(const ModelConfig& config) {  // a normed channel is first multiplied by 1
  return config.norm_plus_one ? Init::kZero : Init::kOne;
}

struct Norm {
  NormKind kind;
  float epsilon, offset;  // a normed channel is multiplied by offset + weight
  const NormWeights& weights;
  const NormSaved& saved;
  Tensor x;  // [N, C]
};

// If `fp8_y` is given, y is also written in FP8.
void norm_forward(const Stream& stream, const Norm& norm, const Fp8Output& fp8_y = {});

// On entry saved.y holds the gradient of y.
struct NormBackward {
  const NormWeights& gradients;
  Tensor dx;               // add + the gradient of x
  Tensor add = {};         // may be dx itself
  Tensor dx_sum = {};      // gets the sum of dx's rows: the gradient of the last bias that was added to x
  Fp8Output fp8_dx = {};   // gets dx in FP8 as well
  bool accumulate = true;  // whether gradients of parameters are added to; else they are overwritten
};
void norm_backward(const Stream& stream, const Norm& norm, const NormBackward& backward);

// Makes the norm in front of a linear layer of a decode step a part of that layer's operation.
void put_norm_in(const Norm& norm, FusedLinear& linear);
std::string norm_not_in_decode(const ModelConfig& config);  // what put_norm_in() cannot compute; empty:
                                                            // nothing

}  // namespace tessera

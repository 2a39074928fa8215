// The adapters of linear layers (lora_config.h): a forward and a backward that are those of the layer alone
// where it has no adapter, and the layer's weight with the adapter added.
#pragma once

#include <string>

#include "kernels/stream.h"
#include "model/fp8_linear.h"
#include "model/part.h"

namespace tessera {

// A linear layer, its adapter, and what it has for FP8
struct LinearLayer {
  const LinearWeights& weights;
  const Fp8Linear& fp8;
  LayerParts parts;                            // outputs of the layers that it is
  Tensor u = {};                               // [N, P r], kept for the backward; none without an adapter
  float scale = 0;                             // of the adapter; 0: the model leaves it out
  Tensor saturated_x = {}, saturated_dy = {};  // counts, as quantise_operands() takes them; none: not counted

  bool adapted() const { return weights.lora_a && scale != 0; }
};

// What a linear layer computes: `gemm`, and on top of that its adapter.
void linear_forward(const Stream& stream, const LinearLayer& layer, LinearForward gemm);
struct LinearGradients {
  LinearBackward gemm;           // with the gradients of weight and bias
  const LinearWeights& adapter;  // lora_a and lora_b are the gradients of these
};
void linear_backward(const Stream& stream, const LinearLayer& layer, LinearGradients gradients);

// weight [O, C], or [E, O, C] of experts, += scale B A, of fp32 tensors on the host; `parts`: see LoraForward
void add_adapter(const Tensor& weight, const Tensor& a, const Tensor& b, const LayerParts& parts,
                 float scale);

std::string text_of(AdaptedParts parts);      // "none", or words with a plus between them
std::string text_of(const LoraConfig& lora);  // "none", or "rank 16, alpha 32, attention+mlp"

}  // namespace tessera

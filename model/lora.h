// Linear layers with adapters (lora_config.h): a forward and a backward, which are those of the layer itself
// if it has no adapter; and the layer's weight with the adapter added.
#pragma once

#include <string>

#include "kernels/stream.h"
#include "model/fp8_linear.h"
#include "model/part.h"

namespace tessera {

// A linear layer, its adapter, and its tensors for FP8
struct LinearLayer {
  const LinearWeights& weights;
  const Fp8Linear& fp8;
  LayerParts parts;                            // the outputs of each layer that is stored in it
  Tensor u = {};                               // [N, P r], saved for the backward; none without an adapter
  float scale = 0;                             // of the adapter; 0: the model is computed without it
  Tensor saturated_x = {}, saturated_dy = {};  // counts, see quantise_operands(); none: not counted

  bool adapted() const { return weights.lora_a && scale != 0; }
};

// Computes a linear layer: `gemm`, and then its adapter.
void linear_forward(const Stream& stream, const LinearLayer& layer, LinearForward gemm);
struct LinearGradients {
  LinearBackward gemm;           // includes the gradients of weight and bias
  const LinearWeights& adapter;  // its lora_a and lora_b are the gradients of the adapter
};
void linear_backward(const Stream& stream, const LinearLayer& layer, LinearGradients gradients);

// weight += scale B A, with fp32 tensors on the host. weight is [O, C], for experts [E, O, C]; `parts`: see
// LoraForward
void add_adapter(const Tensor& weight, const Tensor& a, const Tensor& b, const LayerParts& parts,
                 float scale);

std::string text_of(AdaptedParts parts);      // "none", or words with a plus between them
std::string text_of(const LoraConfig& lora);  // "none", or "rank 16, alpha 32, attention+mlp"

}  // namespace tessera

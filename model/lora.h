// The adapters of linear layers (lora_config.h): a forward and a backward that are those of the layer alone
// where it has no adapter, and the layer's weight with the adapter added.
#pragma once

#include <string>

#include "kernels/stream.h"
#include "model/part.h"

namespace tessera {

// What a linear layer computes: `product`, and on top of that its adapter. `u`, [N, P r], is kept for the
// backward; none without an adapter.
void linear_forward(const Stream& stream, const ModelConfig& config, const LinearWeights& w,
                    const LayerParts& parts, const Tensor& u, LinearForward product);
void linear_backward(const Stream& stream, const ModelConfig& config, const LinearWeights& w,
                     const LinearWeights& gradients, const LayerParts& parts, const Tensor& u,
                     LinearBackward product);

// weight [O, C] += scale B A, of fp32 tensors on the host; `parts` as in LoraForward
void add_adapter(const Tensor& weight, const Tensor& a, const Tensor& b, const LayerParts& parts,
                 float scale);

std::string text_of(AdaptedParts parts);      // "none", or words with a plus between them
std::string text_of(const LoraConfig& lora);  // "none", or "rank 16, alpha 32, attention+mlp"

}  // namespace tessera

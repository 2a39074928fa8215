// The sizes and variants of a GPT, and figures that follow from them.
#pragma once

#include <cstdint>

#include "kernels/base/activation.h"

namespace tessera {

struct ModelConfig {
  int64_t vocab_size;                     // V: tokens 0 .. V - 1
  int64_t context;                        // the longest sequence: rows of the position table
  int64_t layers;                         // L
  int64_t heads;                          // H
  int64_t channels;                       // C
  int64_t mlp_width = 4 * channels;       // F: the hidden layer of every MLP
  bool tied = true;                       // the logits use the token table
  Activation mlp = Activation::kGelu;     // of the hidden layer
  float norm_epsilon = 1e-5f;             // added to the variance
  bool scale_attention = true;            // scores are divided by sqrt(D)
  bool scale_attention_by_layer = false;  // and, in block l, by l + 1

  bool operator==(const ModelConfig&) const = default;
  int64_t head_dim() const { return channels / heads; }
  // Rows of the token table: tensor cores need multiples of 128. The padding never enters a loss.
  int64_t padded_vocab() const { return (vocab_size + 127) / 128 * 128; }

  int64_t parameters() const {  // without the padding
    const int64_t C = channels, F = mlp_width;
    const int64_t block = 4 * C * C + 2 * C * F + F + 9 * C;
    return (vocab_size * (tied ? 1 : 2) + context) * C + layers * block + 2 * C;
  }
  // FLOPs of training on one token: 6 a parameter, and 6 L C T for causal attention, half of the full T^2. A
  // token table that is only looked up has none.
  double flops_per_token(int64_t T) const {
    const int64_t looked_up = tied ? 0 : vocab_size * channels;
    return 6.0 * static_cast<double>(parameters() - looked_up) +
           6.0 * static_cast<double>(layers * channels * T);
  }
};

}  // namespace tessera

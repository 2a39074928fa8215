// The size of a GPT, and what follows from it.
#pragma once

#include <cstdint>

namespace tessera {

struct ModelConfig {
  int64_t vocab_size;  // V: tokens 0 .. V - 1
  int64_t context;     // the longest sequence: rows of the position table
  int64_t layers;      // L
  int64_t heads;       // H
  int64_t channels;    // C

  bool operator==(const ModelConfig&) const = default;
  int64_t head_dim() const { return channels / heads; }
  // Rows of the token table: tensor cores want multiples of 128. The padding never enters a loss.
  int64_t padded_vocab() const { return (vocab_size + 127) / 128 * 128; }

  int64_t parameters() const {  // without the padding
    const int64_t C = channels;
    return (vocab_size + context) * C + layers * (12 * C * C + 13 * C) + 2 * C;
  }
  // Arithmetic of training one token: 6 a parameter, and 6 L C T for causal attention, counted at half of
  // T^2.
  double flops_per_token(int64_t T) const {
    return 6.0 * static_cast<double>(parameters()) + 6.0 * static_cast<double>(layers * channels * T);
  }
};

}  // namespace tessera

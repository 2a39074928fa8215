// ALiBi, attention with linear biases: Press et al., arXiv:2108.12409. The score of a query at i and a key at
// j gets -m |i - j| added. Each head has a slope m, which is not trained:
//
//   m = 2^(-8 (h + 1) / p)              of head h < p,  p the largest power of two that is at most `heads`
//   m = 2^(-4 (2 (h - p) + 1) / p)      of the others
//
// Within a document, a query and a key are as far apart as they are in the sequence.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera::attention {

struct Alibi {
  int heads = 0;       // the heads of the model; 0: scores have no bias
  int first_head = 0;  // the head of the model that is head 0 of a call
  int power = heads > 0 ? static_cast<int>(std::bit_floor(static_cast<unsigned>(heads))) : 1;  // p
  float inverse = 1.0f / static_cast<float>(power);

  TESSERA_HOST_DEVICE explicit operator bool() const { return heads > 0; }
  TESSERA_HOST_DEVICE float slope(int64_t head_of_call) const {
    const int head = first_head + static_cast<int>(head_of_call);
    const int eighths = head < power ? 8 * (head + 1) : 4 * (2 * (head - power) + 1);
    return exp2f(-static_cast<float>(eighths) * inverse);
  }
};

// What is added to a score. `query` is the place of the query among the keys.
TESSERA_HOST_DEVICE inline float alibi_bias(float slope, int query, int key) {
  return -slope * fabsf(static_cast<float>(query - key));
}

// The token whose key is in row `row` of a cache. A ring has the last `capacity` tokens up to `last`.
TESSERA_HOST_DEVICE inline int token_of_row(int64_t row, int last, int64_t capacity) {
  return last < capacity ? static_cast<int>(row) : static_cast<int>(last - (last - row) % capacity);
}

}  // namespace tessera::attention

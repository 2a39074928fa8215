// Dropout of a row of attention's probabilities, up to 32 keys at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/dropout.h"

namespace tessera::cpu {

// x[j] = factor x[j] where bit j of `kept` is set, else 0, for up to 32 elements
inline void keep(float* x, int64_t count, uint32_t kept, float factor = 1) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) x[j] = kept >> j & 1 ? factor * x[j] : 0.0f;
}

// Dropout of the probabilities of one query. `row` is the token that the query is.
struct DropoutRow {
  const DropoutMask& mask;
  int64_t batch, head, row;

  // Calls f(from, to, kept) for pieces of the keys first_key + [0, keys): bit j of `kept` is for key
  // first_key + from + j.
  template <class F>
  void for_keys(int64_t first_key, int64_t keys, F&& f) const {
    for (int64_t from = 0; from < keys;) {
      const int64_t key = first_key + from, in_block = key % 32, to = std::min(keys, from + 32 - in_block);
      const uint32_t kept = mask.kept(static_cast<uint32_t>(batch), static_cast<uint32_t>(head),
                                      static_cast<uint32_t>(row), static_cast<uint32_t>(key / 32));
      f(from, to, kept >> in_block);
      from = to;
    }
  }
  // Probabilities of these keys that are dropped become 0.
  void drop(float* probabilities, int64_t first_key, int64_t keys) const {
    for_keys(first_key, keys,
             [&](int64_t from, int64_t to, uint32_t kept) { keep(probabilities + from, to - from, kept); });
  }
};

}  // namespace tessera::cpu

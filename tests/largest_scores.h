// The largest score of each head in fp64, as its formula stands.
#pragma once

#include "tests/attention_reference.h"

namespace tessera::test {

// q [B, H, T, D], k [B, K, kv T, D]
inline std::vector<double> largest_scores(const AttentionCase& c, const std::vector<double>& q,
                                          const std::vector<double>& k) {
  std::vector<double> largest(static_cast<size_t>(c.heads), -INFINITY);
  const int64_t D = c.head_dim;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t query = 0; query < c.tokens; ++query)
        for (int64_t key = 0; key < c.kv_tokens; ++key) {
          if (!c.sees(b, h, query, key)) continue;
          const double* row = &q[((b * c.heads + h) * c.tokens + query) * D];
          const double* other = &k[((b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.kv_tokens + key) * D];
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += c.scale * row[d] * other[d];
          if (c.cap > 0) score = c.cap * std::tanh(score / c.cap);
          score -= c.slope(h) * c.distance(b, query, key);
          largest[h] = std::max(largest[h], score);
        }
  return largest;
}

}  // namespace tessera::test

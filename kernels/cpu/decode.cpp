// The cache of keys and values, and attention of one new token over it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void run(const CacheAppend& a, const Launch& /*on*/) {
  const int64_t B = a.k_cache.shape[0], capacity = a.k_cache.shape[1],
                row = a.k_cache.shape[2] * a.k_cache.shape[3];
  const int64_t T = a.k.tensor.shape[1];
  const View<const float> k = heads_of<const float>(a.k), v = heads_of<const float>(a.v);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t start = a.starts.as<int32_t>()[b];
    if (start < 0) continue;
    check(start + T <= capacity, "{}: {} tokens after {} are more than the cache has room for, {}", a.kName,
          T, start, capacity);
    for (int64_t t = 0; t < T; ++t) {
      const int64_t to = (b * capacity + start + t) * row;
      std::memcpy(a.k_cache.as<float>() + to, k.head_begin(b, 0) + t * k.row, static_cast<size_t>(row) * 4);
      std::memcpy(a.v_cache.as<float>() + to, v.head_begin(b, 0) + t * v.row, static_cast<size_t>(row) * 4);
    }
  }
}

// Each head in two passes over the keys: scores and their maximum, then the weighted sum of the values.
void run(const DecodeAttention& a, const Launch& /*on*/) {
  const DecodeShape& s = a.plan.shape;
  const int64_t D = s.head_dim, row = s.kv_heads * D, group = s.heads / s.kv_heads;
  const View<const float> q = heads_of<const float>(a.q);
#pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) {
      float* y = a.y.as<float>() + (b * s.heads + h) * D;
      std::fill_n(y, D, 0.0f);
      const int64_t keys = a.starts.as<int32_t>()[b] + int64_t{1};
      const int64_t first = b * s.capacity * row + h / group * D;
      const float *query = q.head_begin(b, h), *k = a.k_cache.as<float>() + first,
                  *v = a.v_cache.as<float>() + first;
      std::vector<float> scores(static_cast<size_t>(std::max<int64_t>(keys, 0)));
      float most = -INFINITY;
      for (int64_t j = 0; j < keys; ++j) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < D; ++d) sum += query[d] * k[j * row + d];
        scores[static_cast<size_t>(j)] = sum * a.plan.scale;
        most = std::max(most, sum * a.plan.scale);
      }
      float total = 0;
      for (int64_t j = 0; j < keys; ++j) {
        const float p = std::exp(scores[static_cast<size_t>(j)] - most);
        total += p;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) y[d] += p * v[j * row + d];
      }
      for (int64_t d = 0; d < D && keys > 0; ++d) y[d] /= total;
    }
}

}  // namespace tessera::cpu

// Attention and its gradients in fp64 on the CPU, as the formulas stand, with the N x N matrices of a head.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/base/dropout.h"

namespace tessera::test {

struct AttentionCase {
  int64_t batch, tokens, heads, kv_heads;
  int head_dim;
  bool causal;
  double scale;
  Dropout dropout = {};

  int64_t rows() const { return batch * heads * tokens; }        // of q, out and their gradients
  int64_t kv_rows() const { return batch * kv_heads * tokens; }  // of k, v and theirs

  // What dropout multiplies a probability by
  double factor(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (!dropout) return 1;
    const uint32_t kept =
        DropoutMask(dropout).kept(static_cast<uint32_t>(b), static_cast<uint32_t>(h),
                                  static_cast<uint32_t>(query), static_cast<uint32_t>(key / 32));
    return kept >> key % 32 & 1 ? 256.0 / (256 - dropout.threshold) : 0.0;
  }
};

// out, dq [batch, heads, tokens, head_dim]; dk, dv [batch, kv_heads,
// tokens, head_dim]; lse [batch, heads, tokens]
struct AttentionReference {
  std::vector<double> out, lse, dq, dk, dv;
};

// A score below what fp32 holds counts as -inf, as it does in the kernels;
// attention.h says what a row of them gives.
inline AttentionReference reference_attention(const AttentionCase& c, const std::vector<double>& q,
                                              const std::vector<double>& k, const std::vector<double>& v,
                                              const std::vector<double>& dout) {
  const int64_t n = c.tokens, d = c.head_dim, group = c.heads / c.kv_heads;
  AttentionReference r;
  for (auto* x : {&r.out, &r.dq}) x->assign(c.rows() * d, 0.0);
  for (auto* x : {&r.dk, &r.dv}) x->assign(c.kv_rows() * d, 0.0);
  r.lse.assign(c.rows(), 0.0);
  std::vector<double> p(n * n), weights(n * n), ds(n * n);  // weights: p after dropout
  for (int64_t head = 0; head < c.batch * c.heads;
       ++head) {  // b heads + h, of which group share a head of keys
    const int64_t base = head * n, kv_base = head / group * n;
    const auto dot = [d](const double* x, const double* y) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < d; ++i) sum += x[i] * y[i];
      return sum;
    };
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t i = 0; i < n; ++i) {
      const int64_t keys = c.causal ? i + 1 : n;
      double* pi = &p[i * n];
      double* dsi = &ds[i * n];
      double max = -INFINITY, sum = 0, delta = 0;
      for (int64_t j = 0; j < keys; ++j) {
        const double product = dot(&q[(base + i) * d], &k[(kv_base + j) * d]);
        pi[j] = product < -FLT_MAX ? -INFINITY : c.scale * product;
        max = std::fmax(max, pi[j]);
      }
      const bool empty = max == -INFINITY;
      for (int64_t j = 0; j < keys; ++j) sum += pi[j] = empty ? 0 : std::exp(pi[j] - max);
      r.lse[base + i] = max + std::log(sum);
      for (int64_t j = 0; j < keys; ++j) {
        if (!empty) pi[j] /= sum;
        const double factor = c.factor(head / c.heads, head % c.heads, i, j);
        const double weight = weights[i * n + j] = factor * pi[j];
        dsi[j] = factor * dot(&dout[(base + i) * d], &v[(kv_base + j) * d]);  // dP
        delta += pi[j] * dsi[j];
        for (int64_t e = 0; e < d; ++e) r.out[(base + i) * d + e] += weight * v[(kv_base + j) * d + e];
      }
      for (int64_t j = 0; j < keys; ++j) {
        dsi[j] = pi[j] * (dsi[j] - delta) * c.scale;
        for (int64_t e = 0; e < d; ++e) r.dq[(base + i) * d + e] += dsi[j] * k[(kv_base + j) * d + e];
      }
    }
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = c.causal ? j : 0; i < n; ++i) {
        for (int64_t e = 0; e < d; ++e) {
          r.dk[(kv_base + j) * d + e] += ds[i * n + j] * q[(base + i) * d + e];
          r.dv[(kv_base + j) * d + e] += weights[i * n + j] * dout[(base + i) * d + e];
        }
      }
    }
  }
  return r;
}

}  // namespace tessera::test

// Attention in tiles: no N x N matrix exists. The forward streams key tiles past a query tile and keeps, for
// every row, a maximum, a sum and a weighted sum of values; it saves one log-sum-exp per row. The backward
// recomputes a tile of probabilities from the log-sum-exp whenever it needs one.
//
// Forward, for a query tile Q (Bq x D) and key tiles K, V (Bk x D) up to the diagonal:
//   S = scale Q K^T;  masked;  P = exp(S - running maximum);  O = rescale O + P V
//   at the end  y = O / sum
// Backward, for a key tile and all query tiles from its diagonal on, with delta = rowsum(dY * Y):
//   P = exp(S - lse);  dV += P^T dY;  dP = dY V^T;  dS = scale P (dP - delta);  dK += dS^T Q;  dQ += dS K
// Method: Dao, "FlashAttention-2", arXiv:2307.08691, algorithms 1 and 2.
#include <cblas.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/attention_view.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/streaming_softmax.h"

namespace tessera::cpu {
namespace {

// S = scale Q K^T for `queries` rows and `keys` columns; a key after its query (causal) scores -inf.
void score_tile(const Rows& q, int64_t first_query, int64_t queries, const Rows& k, int64_t first_key,
                int64_t keys, const AttentionPlan& plan, float* S) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries, keys, plan.shape.head_dim, plan.scale,
              q.at(first_query), q.stride, k.at(first_key), k.stride, 0.0f, S, keys);
  if (!plan.shape.causal || first_key + keys <= first_query + 1) return;
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = std::max<int64_t>(0, first_query + i + 1 - first_key); j < keys; ++j)
      S[i * keys + j] = -std::numeric_limits<float>::infinity();
}

}  // namespace

void flash_attention_forward(const AttentionForward& a, FlashTile tile) {
  const auto [B, T, H, D, causal] = a.plan.shape;
  const int64_t tiles = (T + tile.queries - 1) / tile.queries;
#pragma omp parallel
  {
    std::vector<float> S(tile.queries * tile.keys), O(tile.queries * D);
    std::vector<StreamingSoftmax> softmax(tile.queries);
#pragma omp for collapse(3) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t first_query = t * tile.queries, queries = std::min(tile.queries, T - first_query);
          const Rows q = packed_rows(a.qkv, b, 0, h), k = packed_rows(a.qkv, b, 1, h),
                     v = packed_rows(a.qkv, b, 2, h);
          std::fill(O.begin(), O.end(), 0.0f);
          std::fill(softmax.begin(), softmax.end(), StreamingSoftmax{});
          const int64_t last_key = causal ? first_query + queries : T;
          for (int64_t first_key = 0; first_key < last_key; first_key += tile.keys) {
            const int64_t keys = std::min(tile.keys, T - first_key);
            score_tile(q, first_query, queries, k, first_key, keys, a.plan, S.data());
            for (int64_t i = 0; i < queries; ++i) {
              const float rescale = softmax[i].absorb(&S[i * keys], keys);
              for (int64_t d = 0; d < D; ++d) O[i * D + d] *= rescale;
            }
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, queries, D, keys, 1.0f, S.data(), keys,
                        v.at(first_key), v.stride, 1.0f, O.data(), D);
          }
          const Rows y = head_rows(a.y, b, h);
          for (int64_t i = 0; i < queries; ++i) {
            const float inverse = softmax[i].inverse_sum();
            for (int64_t d = 0; d < D; ++d) y.at(first_query + i)[d] = O[i * D + d] * inverse;
            a.saved.as<float>()[(b * H + h) * T + first_query + i] = softmax[i].log_sum_exp();
          }
        }
      }
    }
  }
}

void flash_attention_backward(const AttentionBackward& a, FlashTile tile) {
  const auto [B, T, H, D, causal] = a.plan.shape;
#pragma omp parallel
  {
    std::vector<float> P(tile.queries * tile.keys), dS(tile.queries * tile.keys), delta(T);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        const Rows q = packed_rows(a.qkv, b, 0, h), k = packed_rows(a.qkv, b, 1, h),
                   v = packed_rows(a.qkv, b, 2, h);
        const Rows dq = packed_rows(a.dqkv, b, 0, h), dk = packed_rows(a.dqkv, b, 1, h);
        const Rows dv = packed_rows(a.dqkv, b, 2, h), y = head_rows(a.y, b, h), dy = head_rows(a.dy, b, h);
        const float* lse = a.saved.as<float>() + (b * H + h) * T;
        for (int64_t t = 0; t < T; ++t) {
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t d = 0; d < D; ++d) sum += dy.at(t)[d] * y.at(t)[d];
          delta[t] = sum;
          for (const Rows& gradient : {dq, dk, dv}) std::fill_n(gradient.at(t), D, 0.0f);
        }
        for (int64_t first_key = 0; first_key < T; first_key += tile.keys) {
          const int64_t keys = std::min(tile.keys, T - first_key);
          const int64_t first_tile = causal ? first_key / tile.queries * tile.queries : 0;
          for (int64_t first_query = first_tile; first_query < T; first_query += tile.queries) {
            const int64_t queries = std::min(tile.queries, T - first_query);
            score_tile(q, first_query, queries, k, first_key, keys, a.plan, P.data());
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries, keys, D, 1.0f, dy.at(first_query),
                        dy.stride, v.at(first_key), v.stride, 0.0f, dS.data(), keys);
            for (int64_t i = 0; i < queries; ++i) {
              const float row_lse = lse[first_query + i], row_delta = delta[first_query + i];
              float *p = &P[i * keys], *ds = &dS[i * keys];
#pragma omp simd
              for (int64_t j = 0; j < keys; ++j) {
                p[j] = exp(p[j] - row_lse);
                ds[j] = a.plan.scale * p[j] * (ds[j] - row_delta);
              }
            }
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, queries, 1.0f, P.data(), keys,
                        dy.at(first_query), dy.stride, 1.0f, dv.at(first_key), dv.stride);
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, queries, 1.0f, dS.data(), keys,
                        q.at(first_query), q.stride, 1.0f, dk.at(first_key), dk.stride);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, queries, D, keys, 1.0f, dS.data(), keys,
                        k.at(first_key), k.stride, 1.0f, dq.at(first_query), dq.stride);
          }
        }
      }
    }
  }
}

}  // namespace tessera::cpu

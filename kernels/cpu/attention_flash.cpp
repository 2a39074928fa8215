// Attention in tiles: no N x N matrix exists. The forward streams key tiles past a query tile and keeps, for
// every row, a maximum, a sum and a weighted sum of values; it saves one log-sum-exp per row. The backward
// recomputes a tile of probabilities from the log-sum-exp whenever it needs one.
//
// Forward, for a query tile Q (Bq x D) and key tiles K, V (Bk x D) up to the diagonal:
//   S = scale Q K^T;  masked;  P = exp(S - running maximum);  O = rescale O + P V
//   at the end  y = O / sum
// With dropout, the sum is over all probabilities, P V over those that are kept, and y = scale() O / sum.
// Backward, for a query head, a key tile and all query tiles from its diagonal on; delta = rowsum(dY * Y):
//   P = exp(S - lse);  dV += P^T dY;  dP = dY V^T;  dS = scale P (dP - delta);  dK += dS^T Q;  dQ += dS K
// With dropout, dV is of the kept probabilities, and dP of the kept keys, both times scale().
// dK and dV of a key/value head are summed over the query heads that read it.
// Method: Dao, "FlashAttention-2", arXiv:2307.08691, algorithms 1 and 2.
#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "kernels/base/view.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dropped_keys.h"
#include "kernels/cpu/streaming_softmax.h"

namespace tessera::cpu {
namespace {

static_assert(sizeof(StreamingSoftmax) == 2 * sizeof(float),
              "FlashForwardScratch::softmax has room for this");

// S = scale Q K^T for `queries` rows and `keys` columns; a key after its query (causal) scores -inf.
void score_tile(const View<float>& q, int64_t first_query, int64_t queries, const View<float>& k,
                int64_t first_key, int64_t keys, const AttentionPlan& plan, float* S) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries, keys, plan.shape.head_dim, plan.scale,
              q.row_begin(first_query), q.row, k.row_begin(first_key), k.row, 0.0f, S, keys);
  if (!plan.shape.mask.causal || first_key + keys <= first_query + 1) return;
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = std::max<int64_t>(0, first_query + i + 1 - first_key); j < keys; ++j)
      S[i * keys + j] = -std::numeric_limits<float>::infinity();
}

// A query head and the key/value head that it reads; the gradients of both.
struct HeadBackward {
  View<float> q, k, v, y, dy, dq, dk, dv;
  const float* lse;  // [T]
  const Dropout& dropout;
  const DropoutMask& mask;
  int64_t batch, index;

  HeadBackward(const AttentionBackward& a, const DropoutMask& mask_of_all, int64_t b, int64_t h)
      : dropout(a.dropout), mask(mask_of_all), batch(b), index(h) {
    const AttentionShape& s = a.plan.shape;
    const int64_t kv_head = h / s.group();
    q = heads_of<float>(a.q).one_head(b, h), dq = heads_of<float>(a.dq).one_head(b, h);
    y = heads_of<float>(a.y).one_head(b, h), dy = heads_of<float>(a.dy).one_head(b, h);
    k = heads_of<float>(a.k).one_head(b, kv_head), dk = heads_of<float>(a.dk).one_head(b, kv_head);
    v = heads_of<float>(a.v).one_head(b, kv_head), dv = heads_of<float>(a.dv).one_head(b, kv_head);
    lse = a.saved.as<float>() + (b * s.heads + h) * s.tokens;
  }
};

void fill_zero(const View<float>& head, int64_t tokens, int64_t D) {
  for (int64_t t = 0; t < tokens; ++t) std::fill_n(head.row_begin(t), D, 0.0f);
}

// Adds what one query head gives to dQ, dK and dV.
void add_gradients(const HeadBackward& h, const AttentionPlan& plan, FlashTile tile,
                   const FlashBackwardScratch& scratch) {
  const int64_t T = plan.shape.tokens, D = plan.shape.head_dim;
  float *P = scratch.probabilities, *dS = scratch.gradients, *delta = scratch.delta;
  for (int64_t t = 0; t < T; ++t) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < D; ++d) sum += h.dy.row_begin(t)[d] * h.y.row_begin(t)[d];
    delta[t] = sum;
  }
  for (int64_t first_key = 0; first_key < T; first_key += tile.keys) {
    const int64_t keys = std::min(tile.keys, T - first_key);
    const int64_t first_tile = plan.shape.mask.causal ? first_key / tile.queries * tile.queries : 0;
    for (int64_t first_query = first_tile; first_query < T; first_query += tile.queries) {
      const int64_t queries = std::min(tile.queries, T - first_query);
      score_tile(h.q, first_query, queries, h.k, first_key, keys, plan, P);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries, keys, D, 1.0f,
                  h.dy.row_begin(first_query), h.dy.row, h.v.row_begin(first_key), h.v.row, 0.0f, dS, keys);
      for (int64_t i = 0; i < queries; ++i) {
        const float row_lse = h.lse[first_query + i], row_delta = delta[first_query + i];
        float *p = &P[i * keys], *ds = &dS[i * keys];
        const auto to_gradients = [&](int64_t from, int64_t to) {
#pragma omp simd
          for (int64_t j = from; j < to; ++j) {
            p[j] = exp(p[j] - row_lse);
            ds[j] = plan.scale * p[j] * (ds[j] - row_delta);
          }
        };
        if (!h.dropout) {
          to_gradients(0, keys);
          continue;
        }
        const DropoutRow row{h.mask, h.batch, h.index, first_query + i};
        row.for_keys(first_key, keys, [&](int64_t from, int64_t to, uint32_t kept) {
          keep(ds + from, to - from, kept, h.dropout.scale());
          to_gradients(from, to);
          keep(p + from, to - from, kept);
        });
      }
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, queries, h.dropout.scale(), P, keys,
                  h.dy.row_begin(first_query), h.dy.row, 1.0f, h.dv.row_begin(first_key), h.dv.row);
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, D, queries, 1.0f, dS, keys,
                  h.q.row_begin(first_query), h.q.row, 1.0f, h.dk.row_begin(first_key), h.dk.row);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, queries, D, keys, 1.0f, dS, keys,
                  h.k.row_begin(first_key), h.k.row, 1.0f, h.dq.row_begin(first_query), h.dq.row);
    }
  }
}

}  // namespace

void flash_attention_forward(const AttentionForward& a, FlashTile tile) {
  const auto [B, T, H, D, seen, K, kv_tokens] = a.plan.shape;
  const int64_t tiles = (T + tile.queries - 1) / tile.queries, group = H / K;
  const int64_t each = FlashForwardScratch(nullptr, tile, D).bytes;
  const DropoutMask mask(a.dropout);
#pragma omp parallel num_threads(a.plan.threads)
  {
    const FlashForwardScratch scratch(a.workspace.as<char>() + omp_get_thread_num() * each, tile, D);
    float *S = scratch.scores, *O = scratch.output;
    auto* softmax = reinterpret_cast<StreamingSoftmax*>(scratch.softmax);
#pragma omp for collapse(3) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t first_query = t * tile.queries, queries = std::min(tile.queries, T - first_query);
          const View<float> q = heads_of<float>(a.q).one_head(b, h),
                            k = heads_of<float>(a.k).one_head(b, h / group),
                            v = heads_of<float>(a.v).one_head(b, h / group);
          std::fill_n(O, queries * D, 0.0f);
          std::uninitialized_fill_n(softmax, queries, StreamingSoftmax{});
          const int64_t last_key = seen.causal ? first_query + queries : T;
          for (int64_t first_key = 0; first_key < last_key; first_key += tile.keys) {
            const int64_t keys = std::min(tile.keys, T - first_key);
            score_tile(q, first_query, queries, k, first_key, keys, a.plan, S);
            for (int64_t i = 0; i < queries; ++i) {
              const float rescale = softmax[i].absorb(&S[i * keys], keys);
              if (a.dropout) DropoutRow{mask, b, h, first_query + i}.drop(&S[i * keys], first_key, keys);
              for (int64_t d = 0; d < D; ++d) O[i * D + d] *= rescale;
            }
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, queries, D, keys, 1.0f, S, keys,
                        v.row_begin(first_key), v.row, 1.0f, O, D);
          }
          const View<float> y = heads_of<float>(a.y).one_head(b, h);
          for (int64_t i = 0; i < queries; ++i) {
            const float inverse = a.dropout.scale() * softmax[i].inverse_sum();
            for (int64_t d = 0; d < D; ++d) y.row_begin(first_query + i)[d] = O[i * D + d] * inverse;
            a.saved.as<float>()[(b * H + h) * T + first_query + i] = softmax[i].log_sum_exp();
          }
        }
      }
    }
  }
}

// A thread takes a key/value head and its query heads in turn, so the order of every sum is fixed.
void flash_attention_backward(const AttentionBackward& a, FlashTile tile) {
  const auto [B, T, H, D, seen, K, kv_tokens] = a.plan.shape;
  const int64_t each = FlashBackwardScratch(nullptr, tile, T).bytes, group = H / K;
  const DropoutMask mask(a.dropout);
#pragma omp parallel num_threads(a.plan.threads)
  {
    const FlashBackwardScratch scratch(a.workspace.as<char>() + omp_get_thread_num() * each, tile, T);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t kv_head = 0; kv_head < K; ++kv_head) {
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const HeadBackward head(a, mask, b, h);
          fill_zero(head.dq, T, D);
          if (h == kv_head * group) {
            fill_zero(head.dk, T, D);
            fill_zero(head.dv, T, D);
          }
          add_gradients(head, a.plan, tile, scratch);
        }
      }
    }
  }
}

}  // namespace tessera::cpu

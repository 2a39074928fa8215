// Attention in tiles: no N x N matrix exists. The forward streams key tiles past a query tile and keeps, for
// every row, a maximum, a sum and a weighted sum of values; it saves one log-sum-exp per row. The backward
// recomputes a tile of probabilities from the log-sum-exp whenever it needs one.
//
// Forward, for a query tile Q (Bq x D) and the key tiles K, V (Bk x D) that a query of it sees:
//   S = scale Q K^T;  masked;  P = exp(S - running maximum);  O = rescale O + P V
//   at the end  y = O / sum
// With dropout, the sum is over all probabilities, P V over those that are kept, and y = scale() O / sum.
// Backward, for a query head, a key tile and the query tiles that see a key of it; delta = rowsum(dY * Y):
//   P = exp(S - lse);  dV += P^T dY;  dP = dY V^T;  dS = scale P (dP - delta);  dK += dS^T Q;  dQ += dS K
// With dropout, dV is of the kept probabilities, and dP of the kept keys, both times scale().
// dK and dV of a key/value head are summed over the query heads that read it.
// Method: Dao, "FlashAttention-2", arXiv:2307.08691, algorithms 1 and 2.
#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "kernels/attention/blocks.h"
#include "kernels/base/view.h"
#include "kernels/cpu/choose_blocks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dropped_keys.h"
#include "kernels/cpu/listed_keys.h"
#include "kernels/cpu/score_rule.h"
#include "kernels/cpu/streaming_softmax.h"

namespace tessera::cpu {
namespace {

using attention::Mask;
using attention::Span;

static_assert(sizeof(StreamingSoftmax) == 2 * sizeof(float),
              "FlashForwardScratch::softmax has room for this");

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Tile `index` of `size` rows each, of `rows` in all
Span tile_span(int index, int64_t size, int rows) {
  const int begin = index * static_cast<int>(size);
  return {begin, std::min(begin + static_cast<int>(size), rows)};
}

// S for rows `queries` and columns `keys`; a key that its query does not see scores -inf.
void score_tile(const ScoreRule& rule, const View<float>& q, Span queries, const View<float>& k, Span keys,
                const Mask& mask, const ListedKeys& listed, int64_t D, float* S) {
  const int columns = keys.size();
  rule.of_rows(q, queries, k, keys, mask, D, S);
  listed.hide(queries, keys, mask, S, -kInfinity);
  if (mask.whole(queries, keys)) return;
  for (int i = queries.begin; i < queries.end; ++i, S += columns) {
    const Span seen = mask.keys_of(i);
    std::fill(S, S + std::clamp(seen.begin - keys.begin, 0, columns), -kInfinity);
    std::fill(S + std::clamp(seen.end - keys.begin, 0, columns), S + columns, -kInfinity);
  }
}

// A query head and the key/value head that it reads; the gradients of both.
struct HeadBackward {
  View<float> q, k, v, y, dy, dq, dk, dv;
  const float* lse;  // [T]
  const Dropout& dropout;
  const DropoutMask& dropped;
  Mask mask;
  ListedKeys listed;
  int64_t batch, index;

  HeadBackward(const AttentionBackward& a, const DropoutMask& dropped_of_all, const Mask& mask_of_first,
               const ChosenBlocks& chosen, int64_t b, int64_t h)
      : dropout(a.dropout),
        dropped(dropped_of_all),
        mask(mask_of_first.of_sequence(b)),
        listed(blocks_of(a.plan, a.tables), h, chosen.of_head(b, h)),
        batch(b),
        index(h) {
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
  const int64_t D = plan.shape.head_dim;
  const ScoreRule rule = ScoreRule::of_head(attn_problem(plan), h.index);
  const float derivative = rule.derivative();
  float *P = scratch.probabilities, *dS = scratch.gradients, *delta = scratch.delta;
  for (int64_t t = 0; t < plan.shape.tokens; ++t) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < D; ++d) sum += h.dy.row_begin(t)[d] * h.y.row_begin(t)[d];
    delta[t] = sum;
  }
  const Span key_tiles = Span{0, h.mask.keys}.tiles(tile.keys);
  for (int key_tile = key_tiles.begin; key_tile < key_tiles.end; ++key_tile) {
    const Span columns = tile_span(key_tile, tile.keys, h.mask.keys);
    const int64_t first_key = columns.begin, keys = columns.size();
    const Span query_tiles = h.mask.queries_of(columns).tiles(tile.queries);
    for (int query_tile = query_tiles.begin; query_tile < query_tiles.end; ++query_tile) {
      const Span rows = tile_span(query_tile, tile.queries, h.mask.queries);
      if (!h.listed.meet(rows, columns, h.mask)) continue;
      const int64_t first_query = rows.begin, queries = rows.size();
      score_tile(rule, h.q, rows, h.k, columns, h.mask, h.listed, D, P);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries, keys, D, 1.0f,
                  h.dy.row_begin(first_query), h.dy.row, h.v.row_begin(first_key), h.v.row, 0.0f, dS, keys);
      for (int64_t i = 0; i < queries; ++i) {
        // For a row that sees no key 0 stands in for -inf, since -inf - -inf is NaN.
        const float lse = h.lse[first_query + i], row_lse = lse == -kInfinity ? 0.0f : lse;
        const float row_delta = delta[first_query + i];
        float *p = &P[i * keys], *ds = &dS[i * keys];
        const auto to_gradients = [&](int64_t from, int64_t to) {
          if (rule.cap > 0) {
            for (int64_t j = from; j < to; ++j) {
              const float of_cap = rule.cap_derivative(p[j]);
              p[j] = exp(p[j] - row_lse);
              ds[j] = derivative * of_cap * p[j] * (ds[j] - row_delta);
            }
            return;
          }
#pragma omp simd
          for (int64_t j = from; j < to; ++j) {
            p[j] = exp(p[j] - row_lse);
            ds[j] = derivative * p[j] * (ds[j] - row_delta);
          }
        };
        if (!h.dropout) {
          to_gradients(0, keys);
          continue;
        }
        const DropoutRow row{h.dropped, h.batch, h.index, h.mask.token_of(static_cast<int>(first_query + i))};
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
  const AttentionShape& s =
      a.plan.shape;  // by names of their own: clang captures no bindings in OpenMP's regions
  const int64_t B = s.batch, T = s.tokens, H = s.heads, D = s.head_dim, K = s.kv_heads;
  const Mask mask_of_first = mask_of(a.plan, a.tables);
  const AttnProblem problem = attn_problem(a.plan);
  const int tiles = Span{0, mask_of_first.queries}.tiles(tile.queries).end;
  const int64_t group = H / K, each = FlashForwardScratch(nullptr, tile, D).bytes;
  const DropoutMask dropped(a.dropout);
  const ChosenBlocks chosen(a.plan, a.q, a.k, a.tables, a.workspace);
#pragma omp parallel num_threads(a.plan.threads)
  {
    const FlashForwardScratch scratch(behind_choice(a.plan, a.workspace) + omp_get_thread_num() * each, tile, D);
    float *S = scratch.scores, *O = scratch.output;
    auto* softmax = reinterpret_cast<StreamingSoftmax*>(scratch.softmax);
#pragma omp for collapse(3) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int t = 0; t < tiles; ++t) {
          const Mask mask = mask_of_first.of_sequence(b);
          const Span rows = tile_span(t, tile.queries, mask.queries);
          const int64_t first_query = rows.begin, queries = rows.size();
          const View<float> q = heads_of<float>(a.q).one_head(b, h),
                            k = heads_of<float>(a.k).one_head(b, h / group),
                            v = heads_of<float>(a.v).one_head(b, h / group);
          const ScoreRule rule = ScoreRule::of_head(problem, h);
          const ListedKeys listed(blocks_of(a.plan, a.tables), h, chosen.of_head(b, h));
          std::fill_n(O, queries * D, 0.0f);
          std::uninitialized_fill_n(softmax, queries, StreamingSoftmax{});
          const Span key_tiles = mask.keys_of(rows).tiles(tile.keys);
          for (int key_tile = key_tiles.begin; key_tile < key_tiles.end; ++key_tile) {
            const Span columns = tile_span(key_tile, tile.keys, mask.keys);
            if (!listed.meet(rows, columns, mask)) continue;
            const int64_t first_key = columns.begin, keys = columns.size();
            score_tile(rule, q, rows, k, columns, mask, listed, D, S);
            for (int64_t i = 0; i < queries; ++i) {
              const float rescale = softmax[i].absorb(&S[i * keys], keys);
              if (a.dropout)
                DropoutRow{dropped, b, h, mask.token_of(static_cast<int>(first_query + i))}.drop(
                    &S[i * keys], first_key, keys);
              for (int64_t d = 0; d < D; ++d) O[i * D + d] *= rescale;
            }
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, queries, D, keys, 1.0f, S, keys,
                        v.row_begin(first_key), v.row, 1.0f, O, D);
          }
          const View<float> y = heads_of<float>(a.y).one_head(b, h);
          for (int64_t i = 0; i < queries; ++i) {
            const float of_sink = a.sinks ? softmax[i].absorb_sink(a.sinks.as<float>()[h]) : 1.0f;
            const float inverse = a.dropout.scale() * softmax[i].inverse_sum() * of_sink;
            for (int64_t d = 0; d < D; ++d) y.row_begin(first_query + i)[d] = O[i * D + d] * inverse;
            a.saved.as<float>()[(b * H + h) * T + first_query + i] = softmax[i].log_sum_exp();
          }
        }
      }
    }
  }
}

// ds = -(sum over the rows of a head of exp(s - lse) rowsum(dY * Y)): kernels/attention/sinks.h
void add_sink_gradients(const AttentionBackward& a) {
  const AttentionShape& s = a.plan.shape;
#pragma omp parallel for num_threads(a.plan.threads)
  for (int64_t h = 0; h < s.heads; ++h) {
    const float sink = a.sinks.as<float>()[h];
    double sum = 0;
    for (int64_t b = 0; b < s.batch; ++b) {
      const View<float> y = heads_of<float>(a.y).one_head(b, h), dy = heads_of<float>(a.dy).one_head(b, h);
      const float* lse = a.saved.as<float>() + (b * s.heads + h) * s.tokens;
      for (int64_t t = 0; t < s.tokens; ++t) {
        float delta = 0;
#pragma omp simd reduction(+ : delta)
        for (int64_t d = 0; d < s.head_dim; ++d) delta += dy.row_begin(t)[d] * y.row_begin(t)[d];
        if (lse[t] != -kInfinity) sum += static_cast<double>(std::exp(sink - lse[t]) * delta);
      }
    }
    float& gradient = a.dsinks.as<float>()[h];
    gradient = (a.accumulate ? gradient : 0.0f) - static_cast<float>(sum);
  }
}

// A thread takes a key/value head and its query heads in turn, so the order of every sum is fixed.
void flash_attention_backward(const AttentionBackward& a, FlashTile tile) {
  const AttentionShape& s = a.plan.shape;
  const int64_t B = s.batch, T = s.tokens, H = s.heads, D = s.head_dim, K = s.kv_heads;
  const int64_t each = FlashBackwardScratch(nullptr, tile, T).bytes, group = H / K;
  const Mask mask_of_first = mask_of(a.plan, a.tables);
  const DropoutMask dropped(a.dropout);
  const ChosenBlocks chosen(a.plan, a.q, a.k, a.tables, a.workspace);
#pragma omp parallel num_threads(a.plan.threads)
  {
    const FlashBackwardScratch scratch(behind_choice(a.plan, a.workspace) + omp_get_thread_num() * each, tile, T);
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t kv_head = 0; kv_head < K; ++kv_head) {
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const HeadBackward head(a, dropped, mask_of_first, chosen, b, h);
          fill_zero(head.dq, T, D);
          if (h == kv_head * group) {
            fill_zero(head.dk, s.kv_tokens, D);
            fill_zero(head.dv, s.kv_tokens, D);
          }
          add_gradients(head, a.plan, tile, scratch);
        }
      }
    }
  }
  if (a.dsinks) add_sink_gradients(a);
}

}  // namespace tessera::cpu

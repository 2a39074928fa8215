// Attention that stores the probabilities of T queries and N keys: a GEMM, a masked softmax, a GEMM.
#include <cblas.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/attention/mask.h"
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

// To `kept` [T, kv_tokens]: the saved probabilities of a query head that are not dropped, else 0.
template <class Attention>  // AttentionForward or AttentionBackward
void keep_probabilities(const Attention& a, const DropoutMask& dropped, int64_t b, int64_t h, float* kept) {
  const AttentionShape& s = a.plan.shape;
  const int64_t N = s.kv_tokens, all = s.tokens * N;
  const Mask mask = mask_of(a.plan, a.tables).of_sequence(b);
  std::copy_n(a.saved.template as<float>() + (b * s.heads + h) * all, all, kept);
  for (int i = 0; i < mask.queries; ++i) {
    const Span seen = mask.keys_of(i);
    DropoutRow{dropped, b, h, mask.token_of(i)}.drop(kept + i * N + seen.begin, seen.begin, seen.size());
  }
}

// y = scale() P V of a query head, with scale() = 1 without dropout
void weigh_values(const AttentionForward& a, int64_t b, int64_t h, const float* P) {
  const AttentionShape& s = a.plan.shape;
  const View<float> v = heads_of<float>(a.v).one_head(b, h / s.group()),
                    y = heads_of<float>(a.y).one_head(b, h);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, s.tokens, s.head_dim, s.kv_tokens, a.dropout.scale(),
              P, s.kv_tokens, v.data, v.row, 0.0f, y.data, y.row);
}

}  // namespace

void naive_attention_forward(const AttentionForward& a) {
  const AttentionShape& s = a.plan.shape;
  const int64_t B = s.batch, T = s.tokens, H = s.heads, D = s.head_dim, K = s.kv_heads, N = s.kv_tokens;
  const int64_t group = H / K;
  const AttnProblem problem = attn_problem(a.plan);
  const ChosenBlocks chosen(a.plan, a.q, a.k, a.tables, a.workspace);
#pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      const View<float> q = heads_of<float>(a.q).one_head(b, h),
                        k = heads_of<float>(a.k).one_head(b, h / group);
      const Mask mask = mask_of(a.plan, a.tables).of_sequence(b);
      float* P = a.saved.as<float>() + (b * H + h) * T * N;
      ScoreRule::of_head(problem, h).of_rows(q, {0, mask.queries}, k, {0, mask.keys}, mask, D, P);
      ListedKeys(blocks_of(a.plan, a.tables), h, chosen.of_head(b, h))
          .hide({0, mask.queries}, {0, mask.keys}, mask, P, -std::numeric_limits<float>::infinity());
      for (int i = 0; i < mask.queries; ++i) {
        const Span seen = mask.keys_of(i);
        float* p = P + i * N;
        StreamingSoftmax row;
        row.absorb(p + seen.begin, seen.size());
        const float of_sink = a.sinks ? row.absorb_sink(a.sinks.as<float>()[h]) : 1.0f;
        const float inverse = row.inverse_sum() * of_sink;
        for (int j = seen.begin; j < seen.end; ++j) p[j] *= inverse;
        std::fill(p, p + seen.begin, 0.0f);
        std::fill(p + seen.end, p + N, 0.0f);
      }
      if (!a.dropout) weigh_values(a, b, h, P);
    }
  }
  if (!a.dropout) return;
  const DropoutMask dropped(a.dropout);
  for (int64_t b = 0; b < B; ++b) {  // the workspace has room for one sequence
#pragma omp parallel for
    for (int64_t h = 0; h < H; ++h) {
      float* kept = a.workspace.as<float>() + h * T * N;
      keep_probabilities(a, dropped, b, h, kept);
      weigh_values(a, b, h, kept);
    }
  }
}

// For every query head h of a key/value head, in turn, with P and dS of its own:
//   dV += P^T dY,  dP = dY V^T,  dS = P (dP - rowsum(P dP)),  dQ = scale dS K,  dK += scale dS^T Q
// With dropout, P of the first product is without what is dropped, and so is dP; both times scale().
// With a sink s, whose probability is what P lacks of 1:  ds = -(sum over rows of (1 - sum(P)) rowsum(P dP))
void naive_attention_backward(const AttentionBackward& a) {
  const AttentionShape& s = a.plan.shape;
  const int64_t B = s.batch, T = s.tokens, H = s.heads, D = s.head_dim, K = s.kv_heads, N = s.kv_tokens;
  const int64_t group = H / K;
  const ScoreRule rule = ScoreRule::of_head(attn_problem(a.plan), 0);
  const float derivative = rule.derivative();
  const DropoutMask dropped(a.dropout);
  char* const matrices = behind_choice(a.plan, a.workspace);
  auto* of_sinks = reinterpret_cast<float*>(matrices + naive_backward_bytes(a.plan));
  auto* capped = reinterpret_cast<float*>(matrices + naive_matrix_bytes(a.plan));
  for (int64_t b = 0; b < B; ++b) {
    const Mask mask = mask_of(a.plan, a.tables).of_sequence(b);
#pragma omp parallel for
    for (int64_t kv_head = 0; kv_head < K; ++kv_head) {
      const View<float> k = heads_of<float>(a.k).one_head(b, kv_head),
                        v = heads_of<float>(a.v).one_head(b, kv_head);
      const View<float> dk = heads_of<float>(a.dk).one_head(b, kv_head),
                        dv = heads_of<float>(a.dv).one_head(b, kv_head);
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const float beta = h == kv_head * group ? 0.0f : 1.0f;  // the first query head overwrites dK and dV
        const View<float> q = heads_of<float>(a.q).one_head(b, h), dq = heads_of<float>(a.dq).one_head(b, h);
        const View<float> dy = heads_of<float>(a.dy).one_head(b, h);
        const float* P = a.saved.as<float>() + (b * H + h) * T * N;
        // Before it, with dropout, the probabilities kept
        float* dS = reinterpret_cast<float*>(matrices) + h * T * N;
        float* scores = capped + h * T * N;
        if (rule.cap > 0) rule.of_rows(q, {0, mask.queries}, k, {0, mask.keys}, mask, D, scores);
        if (a.dropout) keep_probabilities(a, dropped, b, h, dS);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, N, D, T, a.dropout.scale(), a.dropout ? dS : P,
                    N, dy.data, dy.row, beta, dv.data, dv.row);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, T, N, D, 1.0f, dy.data, dy.row, v.data, v.row,
                    0.0f, dS, N);
        for (int i = 0; i < mask.queries; ++i) {
          const float* p = P + i * N;
          float* ds = dS + i * N;
          if (a.dropout)
            DropoutRow{dropped, b, h, mask.token_of(i)}.for_keys(
                0, N, [&](int64_t from, int64_t to, uint32_t kept) {
                  keep(ds + from, to - from, kept, dropped.scale());
                });
          float sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t j = 0; j < N; ++j) sum += p[j] * ds[j];
          if (a.dsinks) of_sinks[(b * H + h) * T + i] = (1 - std::accumulate(p, p + N, 0.0f)) * sum;
          for (int64_t j = 0; j < N; ++j) ds[j] = p[j] * (ds[j] - sum);
          if (rule.cap > 0)
            for (int64_t j = 0; j < N; ++j) ds[j] *= rule.cap_derivative(scores[i * N + j]);
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, T, D, N, derivative, dS, N, k.data, k.row,
                    0.0f, dq.data, dq.row);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, N, D, T, derivative, dS, N, q.data, q.row, beta,
                    dk.data, dk.row);
      }
    }
  }
  for (int64_t h = 0; a.dsinks && h < H; ++h) {
    float& gradient = a.dsinks.as<float>()[h];
    double sum = 0;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 0; t < T; ++t) sum += static_cast<double>(of_sinks[(b * H + h) * T + t]);
    gradient = (a.accumulate ? gradient : 0.0f) - static_cast<float>(sum);
  }
}

}  // namespace tessera::cpu

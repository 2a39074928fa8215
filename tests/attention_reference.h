// Attention and its gradients in fp64 on the CPU, as the formulas stand, with the N x N matrices of a head.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/base/dropout.h"

namespace tessera::test {

// Which keys a query sees: AttnMask of attention.h, as its words say it. Nothing is taken from
// kernels/attention/mask.h, which is tested against this.
struct MaskCase {
  bool causal;
  int64_t window = 0, offset = 0;
  std::vector<int32_t> documents = {};  // [batch, tokens, 2]; empty: a sequence is one document
  // Of dealt queries, whose keys are in `documents`: [batch, kv_tokens, 2] and [batch, tokens]
  std::vector<int32_t> seen_by = {}, query_tokens = {};

  MaskCase(bool is_causal) : causal(is_causal) {}
  MaskCase(bool is_causal, int64_t of_window, int64_t with_offset = 0)
      : causal(is_causal), window(of_window), offset(with_offset) {}
  MaskCase(bool is_causal, std::vector<int32_t> of_documents, int64_t of_window = 0)
      : causal(is_causal), window(of_window), documents(std::move(of_documents)) {}

  // `token` is the query's place among the batch x tokens
  bool sees(int64_t token, int64_t query, int64_t key) const {
    if (!documents.empty() && (key < documents[2 * token] || key >= documents[2 * token + 1])) return false;
    const int64_t newest = query + offset;
    return !causal || (key <= newest && (window == 0 || key > newest - window));
  }
};

// MaskCase::documents as attn_documents() makes them of cumulative lengths
inline std::vector<int32_t> documents_from(const std::vector<int32_t>& cumulative, int64_t batch,
                                           int64_t tokens) {
  std::vector<int32_t> documents;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < tokens; ++t) {
      const auto next = std::ranges::upper_bound(cumulative, b * tokens + t);
      documents.push_back(static_cast<int32_t>(std::max<int64_t>(*std::prev(next) - b * tokens, 0)));
      documents.push_back(static_cast<int32_t>(std::min<int64_t>(*next - b * tokens, tokens)));
    }
  return documents;
}

// Which blocks of keys each block of queries sees: AttnBlocks, as a matrix for each list
struct BlockCase {
  int64_t size = 0, lists = 1, query_blocks = 0, key_blocks = 0;  // size 0: every block is seen
  std::vector<uint8_t> shown = {};                                // [lists, query_blocks, key_blocks]

  bool shows(int64_t list, int64_t query_block, int64_t key_block) const {
    return shown[(list * query_blocks + query_block) * key_blocks + key_block] != 0;
  }
};

// Blocks that queries choose: AttnChoice, as its words say it
struct ChoiceCase {
  int64_t size = 0, count = 0;  // size 0: every block is seen
};

struct AttentionCase {
  int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0;
  int head_dim = 0;
  MaskCase mask{false};
  double scale = 0;
  Dropout dropout = {};
  int64_t kv_tokens = tokens;
  std::vector<double> sinks = {};           // [heads]; empty: none
  int64_t alibi_heads = 0, first_head = 0;  // as in AttnProblem
  double cap = 0;                           // of scores; 0: none
  BlockCase blocks = {};
  ChoiceCase choice = {};
  bool fp8 = false;  // how it is computed, not what

  bool sees(int64_t b, int64_t head, int64_t query, int64_t key) const {
    if (!mask.sees(b * tokens + query, query, key)) return false;
    return blocks.size == 0 || blocks.shows(head / (heads / blocks.lists),
                                            (query + mask.offset) / blocks.size, key / blocks.size);
  }
  // As in the paper: a geometric sequence for a power of two, else that of the power below, and every other
  // number of the one above
  double slope(int64_t h) const {
    if (alibi_heads == 0) return 0;
    const auto at = static_cast<double>(h + first_head);
    const double p = std::exp2(std::floor(std::log2(static_cast<double>(alibi_heads))));
    return at < p ? std::exp2(-8 * (at + 1) / p) : std::exp2(-8 / (2 * p) * (2 * (at - p) + 1));
  }
  // Of batch b: how far a query is from a key
  double distance(int64_t b, int64_t query, int64_t key) const {
    const int64_t token = mask.query_tokens.empty() ? query : mask.query_tokens[b * tokens + query];
    return std::abs(static_cast<double>(token + mask.offset - key));
  }

  int64_t rows() const { return batch * heads * tokens; }           // of q, out and their gradients
  int64_t kv_rows() const { return batch * kv_heads * kv_tokens; }  // of k, v and theirs

  // What dropout multiplies a probability by
  double factor(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (!dropout) return 1;
    const int64_t token = mask.query_tokens.empty() ? query : mask.query_tokens[b * tokens + query];
    const uint32_t kept =
        DropoutMask(dropout).kept(static_cast<uint32_t>(b), static_cast<uint32_t>(h),
                                  static_cast<uint32_t>(token), static_cast<uint32_t>(key / 32));
    return kept >> key % 32 & 1 ? 256.0 / (256 - dropout.threshold) : 0.0;
  }
};

// out, dq [batch, heads, tokens, head_dim]; dk, dv [batch, kv_heads, kv_tokens, head_dim]; lse [batch, heads,
// tokens]
struct AttentionReference {
  std::vector<double> out, lse, dq, dk, dv;
  std::vector<double> dsinks = {};  // [heads]
  // [heads]: the root of the sum of squares of what dsinks sums, each product of out and dout by itself. A
  // rounding of out is relative to these.
  std::vector<double> dsinks_terms = {};
};

// Which keys the queries of a head choose: [tokens, kv_tokens], of q [tokens, head_dim] and k [kv_tokens,
// head_dim] of the head
inline std::vector<uint8_t> chosen_keys(const AttentionCase& c, int64_t b, int64_t head, const double* q,
                                        const double* k) {
  const int64_t m = c.kv_tokens, d = c.head_dim, size = c.choice.size;
  std::vector<uint8_t> shown(static_cast<size_t>(c.tokens * m));
  for (int64_t i = 0; i < c.tokens; ++i) {
    std::vector<int64_t> keys;
    for (int64_t j = 0; j < m; ++j)
      if (c.sees(b, head, i, j)) keys.push_back(j);
    if (keys.empty()) continue;
    const int64_t begin = keys.front(), own = (keys.back() - begin) / size;
    std::vector<std::pair<double, int64_t>> blocks;  // minus the score, and which one
    for (int64_t block = 0; block < own; ++block) {
      double score = 0;
      for (int64_t j = begin + block * size; j < begin + (block + 1) * size; ++j)
        for (int64_t e = 0; e < d; ++e) score += q[i * d + e] * k[j * d + e];
      blocks.emplace_back(-score, block);
    }
    std::sort(blocks.begin(), blocks.end());
    const auto chosen = std::min<int64_t>(c.choice.count - 1, own);
    for (const int64_t j : keys) {
      const int64_t block = (j - begin) / size;
      const auto is_it = [&](const auto& other) { return other.second == block; };
      shown[i * m + j] = block == own || std::any_of(blocks.begin(), blocks.begin() + chosen, is_it);
    }
  }
  return shown;
}

// A score below what fp32 holds counts as -inf, as it does in the kernels;
// attention.h says what a row of them gives.
inline AttentionReference reference_attention(const AttentionCase& c, const std::vector<double>& q,
                                              const std::vector<double>& k, const std::vector<double>& v,
                                              const std::vector<double>& dout) {
  const int64_t n = c.tokens, m = c.kv_tokens, d = c.head_dim, group = c.heads / c.kv_heads;
  AttentionReference r;
  for (auto* x : {&r.out, &r.dq}) x->assign(c.rows() * d, 0.0);
  for (auto* x : {&r.dk, &r.dv}) x->assign(c.kv_rows() * d, 0.0);
  r.lse.assign(c.rows(), 0.0);
  r.dsinks.assign(c.heads, 0.0);
  r.dsinks_terms.assign(c.heads, 0.0);
  // weights: p after dropout
  std::vector<double> p(n * m), weights(n * m), ds(n * m), of_cap(n * m);
  std::vector<double> of_sink(n), squares(n);
  for (int64_t head = 0; head < c.batch * c.heads; ++head) {
    // b heads + h, of which group share a head of keys
    const int64_t b = head / c.heads, base = head * n, kv_base = head / group * m;
    const auto dot = [d](const double* x, const double* y) {
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < d; ++i) sum += x[i] * y[i];
      return sum;
    };
    const std::vector<uint8_t> chosen = c.choice.size > 0
                                            ? chosen_keys(c, b, head % c.heads, &q[base * d], &k[kv_base * d])
                                            : std::vector<uint8_t>{};
    const auto sees = [&](int64_t i, int64_t j) {
      return c.sees(b, head % c.heads, i, j) && (chosen.empty() || chosen[i * m + j]);
    };
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t i = 0; i < n; ++i) {
      double* pi = &p[i * m];
      double* dsi = &ds[i * m];
      double max = -INFINITY, sum = 0, delta = 0;
      for (int64_t j = 0; j < m; ++j) {
        if (!sees(i, j)) continue;
        const double product = dot(&q[(base + i) * d], &k[(kv_base + j) * d]);
        const double score = c.scale * product;
        pi[j] = product < -FLT_MAX ? -INFINITY
                                   : (c.cap > 0 ? c.cap * std::tanh(score / c.cap) : score) -
                                         c.slope(head % c.heads) * c.distance(b, i, j);
        of_cap[i * m + j] = c.cap > 0 ? 1 - std::pow(pi[j] / c.cap, 2) : 1;
        max = std::fmax(max, pi[j]);
      }
      const double sink = c.sinks.empty() ? -INFINITY : c.sinks[head % c.heads];
      max = std::fmax(max, sink);
      const bool empty = max == -INFINITY;
      if (!empty) sum += std::exp(sink - max);
      for (int64_t j = 0; j < m; ++j)
        if (sees(i, j)) sum += pi[j] = empty ? 0 : std::exp(pi[j] - max);
      r.lse[base + i] = max + std::log(sum);
      for (int64_t j = 0; j < m; ++j) {
        if (!sees(i, j)) continue;
        if (!empty) pi[j] /= sum;
        const double factor = c.factor(b, head % c.heads, i, j);
        const double weight = weights[i * m + j] = factor * pi[j];
        dsi[j] = factor * dot(&dout[(base + i) * d], &v[(kv_base + j) * d]);  // dP
        delta += pi[j] * dsi[j];
        for (int64_t e = 0; e < d; ++e) r.out[(base + i) * d + e] += weight * v[(kv_base + j) * d + e];
      }
      const double p_sink = empty ? 0 : std::exp(sink - r.lse[base + i]);
      of_sink[i] = p_sink * delta, squares[i] = 0;
      for (int64_t e = (base + i) * d; e < (base + i + 1) * d; ++e) {
        const double term = p_sink * r.out[e] * dout[e];
        squares[i] += term * term;
      }
      for (int64_t j = 0; j < m; ++j) {
        if (!sees(i, j)) continue;
        dsi[j] = pi[j] * (dsi[j] - delta) * c.scale * of_cap[i * m + j];
        for (int64_t e = 0; e < d; ++e) r.dq[(base + i) * d + e] += dsi[j] * k[(kv_base + j) * d + e];
      }
    }
    for (const double each : of_sink) r.dsinks[head % c.heads] -= each;
    for (const double each : squares) r.dsinks_terms[head % c.heads] += each;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t j = 0; j < m; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        if (!sees(i, j)) continue;
        for (int64_t e = 0; e < d; ++e) {
          r.dk[(kv_base + j) * d + e] += ds[i * m + j] * q[(base + i) * d + e];
          r.dv[(kv_base + j) * d + e] += weights[i * m + j] * dout[(base + i) * d + e];
        }
      }
    }
  }
  for (double& terms : r.dsinks_terms) terms = std::sqrt(terms);
  return r;
}

}  // namespace tessera::test

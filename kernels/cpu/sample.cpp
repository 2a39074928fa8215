// What an observer of a training sees of attention and of the MLP.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/attention/mask.h"
#include "kernels/base/view.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/listed_keys.h"
#include "kernels/cpu/score_rule.h"

namespace tessera::cpu {
namespace {

using attention::Mask;
using attention::Span;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct QueryScores {
  float largest = kNothing;
  double entropy = 0;
};

struct SampledQuery {
  const float* q;
  int position;  // among the keys
  int listed_place;
  Span seen;
  ListedKeys listed;
};

SampledQuery query_of(const Mask& mask, const View<float>& q, int query, const ListedKeys& listed) {
  return {.q = q.row_begin(query),
          .position = mask.position_of(query),
          .listed_place = mask.listed_place_of(query),
          .seen = mask.keys_of(query),
          .listed = listed};
}

// Calls visit(score) for each key that the query sees, in their order.
template <class Visit>
void each_score(const ScoreRule& rule, int64_t D, const SampledQuery& query, const View<float>& k,
                const Visit& visit) {
  const auto& [q, position, listed_place, seen, listed] = query;
  for (int key = seen.begin; key < seen.end; ++key) {
    if (!listed.blocks.sees(listed.list, listed_place, key)) continue;
    const float* row = k.row_begin(key);
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < D; ++d) dot += q[d] * row[d];
    visit(rule.value(dot, position, key));
  }
}

QueryScores scores_of(const ScoreRule& rule, int64_t D, const SampledQuery& query, const View<float>& k) {
  QueryScores found;
  double sum = 0, weighted = 0;  // of exp(s - largest), and of (s - largest) exp(s - largest)
  each_score(rule, D, query, k, [&](float score) {
    if (score == kNothing) return;
    if (score > found.largest || sum == 0) {
      const double down = sum == 0 ? 0 : found.largest - score, share = std::exp(down);
      weighted = (weighted + down * sum) * share, sum *= share;
      found.largest = score;
    }
    const double down = score - found.largest, share = std::exp(down);
    weighted += down * share, sum += share;
  });
  if (sum > 0) found.entropy = std::log(sum) - weighted / sum;
  return found;
}

}  // namespace

void run(const AttentionSample& a, const Launch& /*on*/) {
  const AttentionShape& s = a.plan.shape;
  const AttnProblem problem = attn_problem(a.plan);
  const int64_t sequences = AttentionSample::sequences(s), queries = AttentionSample::queries(s);
#pragma omp parallel for
  for (int64_t h = 0; h < s.heads; ++h) {
    double entropies = 0;
    int64_t count = 0;
    for (int64_t b = 0; b < sequences; ++b) {
      const Mask mask = mask_of(a.plan, a.tables).of_sequence(b);
      const View<float> q = heads_of<float>(a.q).one_head(b, h),
                        k = heads_of<float>(a.k).one_head(b, h / s.group());
      for (int64_t i = 0; i < queries; ++i) {
        const auto query = static_cast<int>(AttentionSample::query(i, s.tokens));
        const QueryScores one = scores_of(ScoreRule::of_head(problem, h), s.head_dim,
                                          query_of(mask, q, query, {blocks_of(a.plan, a.tables), h}), k);
        if (one.largest == kNothing) continue;
        entropies += one.entropy, ++count;
      }
    }
    a.entropy.as<float>()[h] = count > 0 ? static_cast<float>(entropies / static_cast<double>(count)) : 0.0f;
  }
}

void run(const LargestScores& a, const Launch& /*on*/) {
  const AttentionShape& s = a.plan.shape;
  const AttnProblem problem = attn_problem(a.plan);
#pragma omp parallel for schedule(dynamic)
  for (int64_t h = 0; h < s.heads; ++h) {
    const ScoreRule rule = ScoreRule::of_head(problem, h);
    float largest = kNothing;
    for (int64_t b = 0; b < s.batch; ++b) {
      const Mask mask = mask_of(a.plan, a.tables).of_sequence(b);
      const View<float> q = heads_of<float>(a.q).one_head(b, h),
                        k = heads_of<float>(a.k).one_head(b, h / s.group());
      for (int query = 0; query < mask.queries; ++query)
        each_score(rule, s.head_dim, query_of(mask, q, query, {blocks_of(a.plan, a.tables), h}), k,
                   [&](float score) { largest = score > largest ? score : largest; });
    }
    uint32_t& word = a.largest.as<uint32_t>()[h];
    if (largest > kNothing) word = std::max(word, ordered_word(largest));
  }
}

void run(const DeadUnits& a, const Launch& /*on*/) {
  constexpr int64_t kColumns = 256;  // at a time
  const int64_t N = a.x.shape[0], F = a.x.shape[1];
  float* maxima = a.maxima.as<float>();
#pragma omp parallel for
  for (int64_t first = 0; first < F; first += kColumns) {
    const int64_t end = std::min(F, first + kColumns);
    for (int64_t n = 0; n < N; ++n) {
      const float* row = a.x.as<float>() + n * F;
      // NaN stays, as the largest.
      for (int64_t i = first; i < end; ++i)
        maxima[i] = std::abs(row[i]) <= maxima[i] || std::isnan(maxima[i]) ? maxima[i] : std::abs(row[i]);
    }
  }
  a.dead.as<float>()[0] = static_cast<float>(
      std::count_if(maxima, maxima + F, [](float most) { return most <= DeadUnits::kThreshold; }));
}

}  // namespace tessera::cpu

// How the product x = q k^T of a query and a key becomes their score: s = scale x - slope |i - j|, where the
// query is at i and the key at j (kernels/attention/alibi.h); with a cap c, s = c tanh(scale x / c). The
// rules for GPUs are in kernels/attention/common/score.cuh.
#pragma once

#include <cblas.h>

#include <algorithm>

#include "kernels/attention/mask.h"
#include "kernels/base/view.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/logit_cap.h"

namespace tessera::cpu {

struct ScoreRule {
  float scale;
  float slope = 0;
  float cap = 0;  // 0: none

  template <class Problem>  // AttnProblem or AttnDecodeProblem
  static ScoreRule of_head(const Problem& p, int64_t head) {
    const attention::Alibi alibi = attention::alibi_of(p);
    return {.scale = p.scale, .slope = alibi ? alibi.slope(head) : 0, .cap = p.score_cap};
  }

  float value(float x, int query, int key) const {
    return capped(x * scale) + attention::alibi_bias(slope, query, key);
  }
  float capped(float s) const { return cap == 0 ? s : LogitCap<CapMath>(cap).value(s); }
  // ds/dx without the factor of a cap. It is the same for every x.
  float derivative() const { return scale; }
  // The factor of a cap in ds/dx; 0 for a score of -inf, which a mask has hidden
  float cap_derivative(float s) const {
    const float t = std::max(s / cap, -1.0f);
    return 1 - t * t;
  }
  // Computes the scores S [queries, keys] of rows of D columns of a query head and a key head. `mask` knows
  // the places of queries.
  void of_rows(const View<float>& q, attention::Span queries, const View<float>& k, attention::Span keys,
               const attention::Mask& mask, int64_t D, float* S) const {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries.size(), keys.size(), D, scale,
                q.row_begin(queries.begin), q.row, k.row_begin(keys.begin), k.row, 0.0f, S, keys.size());
    if (cap > 0) {
      const LogitCap<CapMath> own(cap);
      const int64_t count = int64_t{queries.size()} * keys.size();
      for (int64_t i = 0; i < count; ++i) S[i] = own.value(S[i]);
    }
    if (slope == 0) return;
    for (int i = queries.begin; i < queries.end; ++i) {
      const int query = mask.position_of(i);
      for (int j = keys.begin; j < keys.end; ++j) *S++ += attention::alibi_bias(slope, query, j);
    }
  }
};

}  // namespace tessera::cpu

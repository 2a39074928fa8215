// How the product x = q k^T of a query and a key becomes their score: s = scale x - slope |i - j|, where the
// query is at i and the key at j (kernels/attention/alibi.h). The rules of GPUs are in
// kernels/attention/common/score.cuh.
#pragma once

#include <cblas.h>

#include "kernels/attention/mask.h"
#include "kernels/base/view.h"

namespace tessera::cpu {

struct ScoreRule {
  float scale;
  float slope = 0;

  template <class Problem>  // AttnProblem or AttnDecodeProblem
  static ScoreRule of_head(const Problem& p, int64_t head) {
    const attention::Alibi alibi = attention::alibi_of(p);
    return {.scale = p.scale, .slope = alibi ? alibi.slope(head) : 0};
  }

  float value(float x, int query, int key) const {
    return x * scale + attention::alibi_bias(slope, query, key);
  }
  // ds/dx, the same for every x
  float derivative() const { return scale; }
  // S [queries, keys], of rows of two heads of D columns; `mask` knows where queries stand
  void of_rows(const View<float>& q, attention::Span queries, const View<float>& k, attention::Span keys,
               const attention::Mask& mask, int64_t D, float* S) const {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries.size(), keys.size(), D, scale,
                q.row_begin(queries.begin), q.row, k.row_begin(keys.begin), k.row, 0.0f, S, keys.size());
    if (slope == 0) return;
    for (int i = queries.begin; i < queries.end; ++i) {
      const int query = mask.position_of(i);
      for (int j = keys.begin; j < keys.end; ++j) *S++ += attention::alibi_bias(slope, query, j);
    }
  }
};

}  // namespace tessera::cpu

// How the product x = q k^T of a query and a key becomes their score: s = scale x. The rules of GPUs are in
// kernels/attention/common/score.cuh.
#pragma once

#include <cblas.h>

#include "kernels/attention/mask.h"
#include "kernels/base/view.h"

namespace tessera::cpu {

struct ScoreRule {
  float scale;

  float value(float x) const { return x * scale; }
  // ds/dx, the same for every x
  float derivative() const { return scale; }
  // S [queries, keys], of rows of two heads of D columns
  void of_rows(const View<float>& q, attention::Span queries, const View<float>& k, attention::Span keys,
               int64_t D, float* S) const {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, queries.size(), keys.size(), D, scale,
                q.row_begin(queries.begin), q.row, k.row_begin(keys.begin), k.row, 0.0f, S, keys.size());
  }
};

}  // namespace tessera::cpu

// Makes a View of an AttnTensor, and has constants that all kernels compute with.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/base/dropout.h"
#include "kernels/base/view.h"

namespace tessera::attention {

template <class T>
View<T> view(const AttnTensor& t) {
  return {static_cast<T*>(t.data), t.batch, t.row, t.head};
}

inline Dropout dropout_of(const AttnProblem& p) {
  return {.threshold = p.dropout.threshold,
          .key = p.dropout.key,
          .place = p.dropout.place,
          .first_sequence = p.dropout.first_sequence};
}

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// L of a row, from which the backward computes its probabilities as 2^(c s - L). If all scores of a row are
// -inf, its LSE is -inf; its L is +inf, so that its probabilities are 0, where -inf - (-inf) would be NaN.
TESSERA_HOST_DEVICE inline float log2_sum_exp_of(float lse) {
  constexpr float kInfinity = __builtin_huge_valf();
  return lse == -kInfinity ? kInfinity : lse * kLog2e;
}

}  // namespace tessera::attention

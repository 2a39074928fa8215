// StreamingSoftmax: the softmax of one row whose scores arrive a tile at a time.
//
// Invariant: after any number of tiles, `maximum` is the largest score so far and `sum` the sum of exp(score
// - maximum). A weighted sum that is kept beside it stays right if it is multiplied by the result of absorb()
// before the tile is added. Method: Milakov and Gimelshein, "Online normalizer calculation for softmax",
// arXiv:1805.02867.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

struct StreamingSoftmax {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0;

  // Turns scores into exp(score - maximum), with the maximum of all tiles so far. Returns exp(old maximum -
  // new maximum).
  float absorb(float* scores, int64_t count) {
    const float largest = std::max(maximum, largest_of(scores, count));
    // The maximum of a row that has seen only -inf is -inf; 0 replaces it here, since -inf - -inf is NaN.
    const float base = largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest;
    float added = 0;
#pragma omp simd reduction(+ : added)
    for (int64_t i = 0; i < count; ++i) {
      scores[i] = exp(scores[i] - base);
      added += scores[i];
    }
    const float rescale = exp(maximum - base);
    maximum = largest;
    sum = sum * rescale + added;
    return rescale;
  }

  // One more score, which has no value: a sink (kernels/attention/sinks.h). Returns as absorb() does.
  float absorb_sink(float sink) { return absorb(&sink, 1); }

  float inverse_sum() const { return sum == 0 ? 0.0f : 1.0f / sum; }  // a row without any key gives 0
  float log_sum_exp() const { return sum == 0 ? maximum : maximum + std::log(sum); }
};

}  // namespace tessera::cpu

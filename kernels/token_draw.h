// The arithmetic of SampleTokens, which all devices share, so that equal logits give equal tokens.
//
// Probabilities are whole numbers. A token's weight is exp((x - largest) / temperature) in units of 2^-40,
// rounded down. Sums of whole numbers do not depend on their order, and so not on the number of threads or
// the device. A token that is less probable than 2^-40 times the most probable one has weight 0, and is never
// drawn.
//
// Tokens are ordered by their logit, after the repetition penalty; among equal logits by their id. top_k and
// top_p keep the beginning of that order, up to a TokenCut.
//
//   1. x = penalised(logit) of tokens in `seen`. If the largest x is not finite, or a logit is NaN, the token
//      is kBadLogits, and the sequence becomes idle: it has no next token to read. If the temperature is
//      0, the token is the first in the order.
//   2. With top_k, the cut is at the k-th token of the order.
//   3. With top_p, the cut is where the weights, summed in the order up to the cut of 2, first reach
//      top_p_weight(their total).
//   4. With min_p, the weight of a kept token is at least min_p_weight().
//   5. The token is drawn from the kept tokens, in the order of their ids: it is the first for which the
//      weights up to and including its own sum to more than drawn_weight(seed, sequence, draw, their total).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/base/random.h"

namespace tessera {

inline constexpr int kWeightBits = 40;  // the weights of a vocabulary of 2^23 tokens sum to less than 2^63
inline constexpr uint64_t kWholeWeight = uint64_t{1} << kWeightBits;  // of the most probable token
inline constexpr uint64_t kSamplingStream = uint64_t{1} << 32;        // no initial weights use this stream

// The logit of a token that occurs in the text. It uses fma because a compiler may join a product and a later
// sum.
TESSERA_HOST_DEVICE inline float penalised(float logit, float penalty) {
  return logit > 0 ? logit / penalty : fmaf(logit, penalty, 0.0f);
}

// Larger for a larger float; equal for 0 and -0. Not for NaN.
TESSERA_HOST_DEVICE inline uint32_t order_of(float x) {
#ifdef __CUDA_ARCH__
  const uint32_t bits = __float_as_uint(x + 0.0f);
#else
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
#endif
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
// The number with this order
TESSERA_HOST_DEVICE inline float number_of(uint32_t order) {
  const uint32_t bits = order >> 31 ? order & 0x7fffffffu : ~order;
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// exp((x - largest) / temperature) in units of 2^-40; x <= largest, temperature > 0. With d = n ln 2 + r and
// |r| <= ln 2 / 2, exp(r) is a Taylor polynomial of degree 7, whose error is 5e-9; every step is an fma, so
// that devices round alike.
TESSERA_HOST_DEVICE inline uint64_t weight_of(float x, float largest, float temperature) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  constexpr float kNothing = -28;        // exp(-28) < 2^-40
  const float exact = (x - largest) / temperature;
  const float d = exact > kNothing ? exact : kNothing;  // of -inf / inf, too
  const float n = fmaf(d, kLog2e, kRound) - kRound;
  const float r = fmaf(n, -kLn2Low, fmaf(n, -kLn2High, d));
  float p = fmaf(r, 1.0f / 5040, 1.0f / 720);
  p = fmaf(p, r, 1.0f / 120);
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  // p 2^24 is a whole number, but below 1 - 2^-24; 2^38 more leaves room for it in 63 bits.
  constexpr int kMantissa = 24, kShift = 38;
  const uint64_t mantissa = static_cast<uint32_t>(static_cast<int32_t>(p * 0x1p24f));
  return (mantissa << kShift) >> (kShift + kMantissa - kWeightBits - static_cast<int32_t>(n));
}

// The end of the kept tokens in the order of tokens
struct TokenCut {
  uint32_t order = 0;           // order_of() of x of the last kept token
  int64_t last_id = INT64_MAX;  // of the tokens with this order, those up to this id are kept

  TESSERA_HOST_DEVICE bool keeps(uint32_t token_order, int64_t id) const {
    return token_order > order || (token_order == order && id <= last_id);
  }
};

// The sum of weights at which the cut of top_p is: top_p of `total`, rounded up; from 1 to `total`
TESSERA_HOST_DEVICE inline uint64_t top_p_weight(float top_p, uint64_t total) {
  const double share = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const uint64_t weight = static_cast<uint64_t>(share);
  return weight < 1 ? 1 : weight > total ? total : weight;
}

TESSERA_HOST_DEVICE inline uint64_t min_p_weight(float min_p) {
  return static_cast<uint64_t>(ceil(static_cast<double>(min_p) * static_cast<double>(kWholeWeight)));
}

// A number from 0 to total - 1, uniformly drawn: the upper 64 bits of the product of 64 random bits and the
// total
TESSERA_HOST_DEVICE inline uint64_t drawn_weight(uint64_t seed, int32_t sequence, int32_t draw,
                                                 uint64_t total) {
  const Philox random(seed, kSamplingStream + static_cast<uint32_t>(sequence));
  const Philox::Words words = random.bits(static_cast<uint32_t>(draw));
  const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
#ifdef __CUDA_ARCH__
  return __umul64hi(bits, total);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(bits) * total >> 64);
#endif
}

}  // namespace tessera

// How far a result may lie from its reference, derived from the precision of the type that holds it.
#pragma once

#include <cmath>

#include "kernels/base/tensor.h"

namespace tessera::tolerance {

// Half a unit in the last place, relative: what one rounding to nearest can do to a number just below a power
// of two, and half of what it can do to one just above.
inline constexpr double kRoundingBf16 = 0x1p-9, kRoundingF32 = 0x1p-24;

// Operations on CUDA against the same operation on the CPU in fp32, both from inputs that the dtype can hold.
// bf16: the result is rounded once, and at odd sizes an intermediate too; each may lie just above a power of
// two. fp32: sums of a thousand terms in another order. A result may differ by this share of its own size and
// of the tensor's root mean square.
inline double of_operation(DType dtype) {
  return dtype == DType::kBF16 ? 2 * 2 * kRoundingBf16 : 256 * kRoundingF32;
}

// Operations on the CPU against their formulas in fp64: a share of an element's own size and of the tensor's
// root mean square. A sum of up to 1000 products is a random walk of sqrt(1000) = 32 roundings, the largest
// of a thousand elements lies four deviations out, and most sums are shorter; a result has a few more.
inline constexpr double kCpuOperation = 128 * kRoundingF32;  // 8e-6

// The log of a sum of exponentials on the CPU, absolute: an exponential is within 2 units in the last place,
// 4 roundings; of 256 that are added in fp32 the roundings are a random walk, 16 of them; and the difference
// that is exponentiated is rounded, too. The number of exponentials does not count: such sums are added in
// fp64.
inline constexpr double kCpuLogSumExp = 24 * kRoundingF32;  // 1.4e-6

// The mean of `count` elements in bf16 that have been rounded at random so many times, relative. One rounding
// is off by up to a unit in the last place, 2^-7, with a mean of 0 and so a deviation of at most half of
// that. Roundings add up like a random walk, other elements average them out; five deviations.
inline double of_mean_at_random(int64_t roundings, int64_t count) {
  return 5 * 0x1p-8 * std::sqrt(static_cast<double>(roundings) / static_cast<double>(count));
}

// Log-probabilities of a small model in llama.cpp on the CPU, with weights in fp32, against transformers in
// fp64. llama.cpp looks up GPT-2's GELU in a table of fp16, for arguments in fp16: each of the two roundings
// is up to 2^-11 relative, and logits of a magnitude of 4 move by as much. Others differ by 3e-6.
inline constexpr double kLlamaCpp = 4 * 0x1p-11;

// A sum of `terms` numbers, relative to the sum of their magnitudes: every addition rounds a partial sum
// that is no larger, and the rounding errors of those before add less than one rounding more. A rounding is
// twice as large, relatively, just above a power of two as just below.
inline double of_sum(DType dtype, int terms) {
  return terms * 2 * (dtype == DType::kBF16 ? kRoundingBf16 : kRoundingF32);
}

// The whole model in fp32 against PyTorch in fp64: the bound that users are promised. About 200 roundings
// deep; a random walk of them is 14 epsilon = 8e-7, and a gradient's largest error is several deviations out.
inline constexpr double kCpuAgainstPyTorch = 1e-5;

// Losses of pairs and rewards over ten steps of a small model, likewise: a sum over a document of up to 20
// log-probabilities of about 5, each rounded to fp32, which is 5e-7 if all go one way, and what the steps
// before have rounded in the weights.
inline constexpr double kPairLosses = 2e-6;

// First gradients of pairs, likewise: as a multiple of the error that TRL has in fp32. Both round as often,
// in another order, and each error is that of one element, the worst of 13,000. Measured with eight models
// and sets of pairs: half of the multiples are below 0.92, 95% below 1.6, the largest of 224 is 2.1.
inline constexpr double kPairGradients = 3;

// Logits with a cache of keys and values against those of a forward over the whole text: the same products
// with their sums in another order, and each within that bound of the exact ones.
inline constexpr double kCachedLogits = 2 * kCpuAgainstPyTorch;

// Flash against naive on the CPU: two ways to sum up to 1000 products in fp32. Rounding errors add up like a
// random walk, sqrt(1000) = 32 of them, and exp() of a score near 10 multiplies the score's own error by 10.
inline constexpr double kCpuAttention = 320 * kRoundingF32;

// The whole model on CUDA in fp32: the same depth, with longer sums in other orders.
inline constexpr double kCudaF32AgainstPyTorch = 1e-4;

// The whole model in bf16. A gradient of the first layer has passed about 12 roundings a block, forward and
// backward, and those of the weights themselves: 60 for a few blocks. A random walk of 60 roundings of 2^-9
// is 1.5%; the largest of a thousand elements lies four deviations out. The loss is a mean over many
// tokens, whose errors partly cancel.
inline constexpr double kBf16ModelGradient = 4 * 7.75 * kRoundingBf16;  // 6%
// With relu, whose slope jumps: a pre-activation that a dozen roundings, 0.7% of its deviation, carry
// across zero has another slope. So have 0.8 x 0.4 x 0.7% of them, 0.22%: a sum of which a share s of the
// terms is wrong is wrong by sqrt(s), 4.7%, and so in each of three blocks, of independent signs.
inline constexpr double kBf16ReluGradient = kBf16ModelGradient + 1.73 * 0.047;  // 14%
inline constexpr double kBf16ModelLoss = 2 * kRoundingBf16;                     // 0.4%

// Ranks add up in another order. The first loss is a mean of the same numbers, each rounded a few times;
// later ones feel the roundings of earlier gradients, which AdamW makes larger where a gradient is near
// zero.
inline constexpr double kFirstLossOfRanks = 1e-6, kLossesOfRanks = 1e-4;
// Relative to the largest of a bucket: a gradient is a sum over the tokens, and each of its parts went
// through sums of some hundred terms in another order.
inline constexpr double kGradientsOfContext = 1e-6;
// Relative to the largest update of a parameter, or to a norm, after two steps: each is a sum of some hundred
// terms, so some ten roundings to 2^-24 at random, and the second step feels those of the first; five times
// that.
inline constexpr double kUpdatesOfRanks = 5e-6;
// In bf16, the error of gradients beside fp32 as a multiple of one GPU's: partial sums of dK and dV are
// rounded once more, and these are few of all roundings.
inline constexpr double kErrorOfContext = 1.1;

// A product of factors in e5m2 and e4m3 against that of their own values, relative to its largest element. A
// rounding to e5m2 is up to 2^-3 relative, 1 / sqrt(3) of that on average; that to e4m3 adds little. In sums
// of ten terms and more they add up like the terms, at random: 7% of a typical element; five times that.
inline constexpr double kFp8Product = 5 * 0x1p-3 / 1.73;

// The loss of a model in FP8 against the same in fp32, after some dozens of steps, relative to the loss
// before training: of a text that is nearly known by heart it is near zero, and any rounding a large part.
inline constexpr double kFp8ModelLoss = 0.02;

// Gradients of a model of two blocks in FP8 against the same without, relative to the largest element. Eight
// GEMMs have an x that is rounded by up to 2^-4, and eight a dy that is rounded by up to 2^-3, 1 / sqrt(3) of
// that on average: 23% of a typical element, at random. The largest of a thousand differences lies as many
// deviations out as the largest element; half as much again for what is rounded twice.
inline constexpr double kFp8ModelGradient = 1.5 * 0.23;
// Gradients of a model in FP8 whose bf16 values were rounded another way, relative to the largest element:
// an ulp of bf16, 2^-8, moves a sixteenth of the values to the next one of e5m2, which lies 2^-2.5 away: 4%
// on average, as much again as in bf16.
inline constexpr double kFp8GradientInBf16 = 2 * kBf16ModelGradient;

// The mean loss of 11 pairs of a new model in FP8, beta 0.5, whose bf16 values were rounded another way: a
// sixteenth of the values of e4m3 move by 2^-4, 1.6% on average. So do logits, whose deviation is 0.02
// sqrt(128), and the difference of two of them; a pair sums up some ten tokens. The slope of the loss is 1/2:
// 1/2 x 0.5 x 0.016 x 0.23 x sqrt(2 x 10) = 0.4% a pair, 0.12% in the mean; four times that.
inline constexpr double kFp8LossOfPairs = 4 * 0.0012;

// Ranks in FP8: a sum in another order tips some elements over to the next number of the format, which is up
// to 2^-3 away; few of them, and the losses are means.
inline constexpr double kFp8LossesOfRanks = 1e-3;

// The exponent of a fit through an exact power: some ten logarithms up to 40, each rounded to fp64, over a
// spread of several doublings.
inline constexpr double kExactPower = 400 * 0x1p-53;

// The gradient norm in fp32 against fp64: a sum of up to 2^19 squares, whose roundings of 2^-25 on average
// walk at random, sqrt(2^19) of them
inline constexpr double kGradientNorm = 724 * 0x1p-25;

}  // namespace tessera::tolerance

// Fused attention kernels (kernels/attention/) against fp64. Errors are relative to the largest element of
// the reference.
namespace tessera::tolerance::attention {

// One rounding to bf16: 2^-9 of a number just below a power of two, 2^-8 of one just above. A largest
// element may be either.
inline constexpr double kOneRounding = 2 * kRoundingBf16;
// O = sum of P V: P is rounded once (a weighted mean of such errors, with few keys no smaller than one),
// and O when it is stored.
inline constexpr double kBf16Out = 2 * kOneRounding;  // 0.8%
// With a sink, where a pass over the stored O adds it: O is rounded a second time.
inline constexpr double kBf16OutWithSinks = kBf16Out + kOneRounding;  // 1.2%
// Decoding keeps 16 bits of P: O is rounded when it is stored, and that is all.
inline constexpr double kBf16DecodeOut = kOneRounding + 1e-5;
// Over codes of 4 bits P times the step of a value is rounded once.
inline constexpr double kInt4DecodeOut = kBf16DecodeOut + kOneRounding;
// Scores up to 1e3: a sum of products that are as large carries some roundings of 1e3 2^-24, and so does P.
inline constexpr double kScoresOfAThousand = 8 * 1e3 * kRoundingF32;
// Gradients: P or dS rounded; the gradient when it is stored; and one more for delta from the rounded O, and
// for the terms that a gradient sums, which are larger than the sum.
inline constexpr double kBf16Gradient = 3 * kOneRounding;  // 1.2%
// LSE is fp32 throughout. A score is a sum of up to 256 products, in any order, with partial sums about as
// large as itself: some 10 roundings of 6e-8; relative to scores of a few units. Absolute where |LSE| < 1.
inline constexpr double kLogSumExp = 1e-5;
// fp32: scores as above enter exponentials, so that P carries some 1e-6 |score|; sums of up to 2,047 rows add
// the like.
inline constexpr double kF32Out = 1e-5;
inline constexpr double kF32Gradient = 4e-5;
// Scores near 1e4 (scale 1): a score carries a few roundings of 1e4 2^-24 = 6e-4, and so does, relatively, P.
inline constexpr double kScoresOfTenThousand = 8 * 1e4 * kRoundingF32;  // 0.5%

}  // namespace tessera::tolerance::attention

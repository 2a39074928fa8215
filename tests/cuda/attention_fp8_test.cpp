// Attention whose forward multiplies in FP8: with inputs that e4m3 holds exactly it is held to fp64 as
// closely as in bf16, and with random ones to what its roundings cause.
#include <numeric>

#include "kernels/attention/family.h"
#include "tests/cuda/attention_problem.h"

namespace tessera::test {
namespace {

double norm(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}
double relative_error(const std::vector<double>& x, const std::vector<double>& y) {
  std::vector<double> difference(x.size());
  for (size_t i = 0; i < x.size(); ++i) difference[i] = x[i] - y[i];
  return norm(difference) / norm(y);
}

// Rows with one number each, a power of two: turned by a Hadamard matrix, all columns have its magnitude.
// Values are powers of two as well, and so are probabilities, since scores are whole multiples of ln 2. So
// nothing is rounded but the output.
Inputs exact_inputs(const AttentionCase& c) {
  Inputs inputs(c, true);
  const auto rows = [&](std::vector<double>& x, int64_t prime) {
    std::ranges::fill(x, 0);
    const auto D = static_cast<size_t>(c.head_dim);
    for (size_t row = 0; row < x.size() / D; ++row) {
      const size_t r = row * static_cast<size_t>(prime);
      x[row * D + r % 3 * (D / 3)] = (r % 5 < 2 ? -1.0 : 1.0) * (r % 7 < 3 ? 2.0 : 1.0);
    }
  };
  rows(inputs.q, 11), rows(inputs.k, 13);
  for (size_t i = 0; i < inputs.v.size(); ++i) {
    const size_t r = i * 2654435761u >> 7;
    inputs.v[i] = (r % 2 == 0 ? 1.0 : -1.0) * std::ldexp(1.0, static_cast<int>(r / 2 % 4));
  }
  return inputs;
}

class AttentionFp8 : public AttentionKernels, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    if (device_arch() != attention::kHopper || !attention::sm90::kFp8Family.built())
      GTEST_SKIP() << "needs a GPU of compute capability 9.0 and a build for it";
  }
  static AttentionCase shape(int64_t batch, int64_t tokens, const MaskCase& mask, int64_t kv_heads = 1,
                             int64_t group = 2) {
    AttentionCase c{batch, tokens, kv_heads * group, kv_heads, GetParam(), mask, std::log(2.0)};
    c.fp8 = true;
    return c;
  }
  static AttentionReference reference(const AttentionCase& c, const Inputs& inputs) {
    return reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
  }
  static void expect_exact(const AttentionCase& c, Packing packing = Packing::kSeparate) {
    SCOPED_TRACE(::testing::Message()
                 << c.tokens << " tokens, " << c.kv_tokens << " keys, window " << c.mask.window << ", offset "
                 << c.mask.offset << (c.mask.causal ? ", causal" : ", full"));
    const Inputs inputs = exact_inputs(c);
    const Outputs r = Problem(c, true, packing, inputs, attention::kHopper).run();
    // dQ is a sum of few terms, of which rows with equal keys cancel most: twice what sums of random terms
    // have.
    Limits limit = limits(true);
    limit.gradient *= 2;
    expect_within(errors_of(r, reference(c, inputs), cancelled_terms(c, inputs)), limit);
  }
};

TEST_P(AttentionFp8, OfExactNumbersAgreesWithFp64) {
  for (const int64_t tokens : {1, 15, 63, 64, 65, 127, 128, 129, 193, 257, 391})
    for (const bool causal : {true, false}) {
      expect_exact(shape(tokens < 100 ? 2 : 1, tokens, causal));
      expect_exact(shape(2, tokens, causal, 2, 1), Packing::kPackedQkv);
    }
}

TEST_P(AttentionFp8, UnderMasksOfExactNumbersAgreesWithFp64) {
  for (const int64_t window : {1, 50, 128, 200}) expect_exact(shape(1, 391, {true, window}));
  const std::vector<int32_t> cumulative = {0, 1, 64, 128, 193, 195, 323, 452, 455, 600, 666};
  for (const bool causal : {true, false})
    expect_exact(shape(2, 333, {causal, documents_from(cumulative, 2, 333)}), Packing::kPackedApart);
  for (const int64_t offset : {200, 130, -64}) {  // queries before all keys see none
    AttentionCase c = shape(2, 121, {true, 0, offset});
    c.kv_tokens = 321;
    expect_exact(c);
  }
}

// Rows that see a key have its value, whatever the others are: the sinks are added after the kernel.
TEST_P(AttentionFp8, WithSinksAgreesWithFp64) {
  AttentionCase c = shape(1, 203, true, 2, 2);
  c.sinks = {0, 1, -2, 3};
  const Inputs inputs = exact_inputs(c);
  const Outputs r = Problem(c, true, Packing::kSeparate, inputs, attention::kHopper).run();
  Limits limit = limits(true);
  limit.out = tolerance::kBf16OutWithSinks, limit.gradient *= 2;
  expect_within(errors_of(r, reference(c, inputs), cancelled_terms(c, inputs)), limit);
}

// e4m3 rounds by 2^-4 at most and 2.6% on average. A probability has that error, and that of its score: of
// a standard deviation of 1, from two factors, 3.7%. A value has 2.6%. Together 5.2%, and sums average
// these as they do the values themselves. A half as much again is allowed. Large numbers in a few columns
// change nothing: their rows are turned, which spreads them.
TEST_P(AttentionFp8, OfRandomNumbersIsAsExactAsItsRoundings) {
  for (const double spike : {0.0, 30.0})
    for (const bool causal : {true, false}) {
      AttentionCase c = shape(1, 700, causal);
      c.scale = 1 / std::sqrt(c.head_dim);
      Inputs inputs(c, true);
      if (spike > 0)  // keys with a column far from 0, which the softmax does not see
        for (size_t row = 0; row < inputs.k.size(); row += static_cast<size_t>(c.head_dim))
          inputs.k[row + 3] = spike;
      if (spike > 0)
        for (size_t row = 0; row < inputs.q.size(); row += static_cast<size_t>(c.head_dim))
          inputs.q[row + 3] = 0;
      const AttentionReference want = reference(c, inputs);
      const Outputs r = Problem(c, true, Packing::kSeparate, inputs, attention::kHopper).run();
      const double out = relative_error(r.out, want.out);
      std::printf("head dim %d%s, spike %.0f: relative error of out %.3f\n", c.head_dim,
                  causal ? ", causal" : "", spike, out);
      EXPECT_LE(out, spike > 0 ? 0.25 : 0.08);
    }
}

// The tensor cores' sums of some 14 bits would lose what 30,000 equal keys add up to.
TEST_P(AttentionFp8, ALongSumLosesNothing) {
  AttentionCase c = shape(1, 64, false);
  c.kv_tokens = 30'011;
  Inputs inputs(c, true);
  std::ranges::fill(inputs.q, 0);
  for (double& v : inputs.v) v = from_bf16(to_bf16(static_cast<float>(1 + 0.125 * v)));
  const Outputs r = Problem(c, true, Packing::kSeparate, inputs, attention::kHopper).run();
  std::vector<double> means(static_cast<size_t>(c.head_dim), 0);
  for (size_t i = 0; i < inputs.v.size(); ++i)
    means[i % static_cast<size_t>(c.head_dim)] += inputs.v[i] / static_cast<double>(c.kv_tokens);
  // Roundings of 30,011 values average out to 2.6% / 173, of which five deviations lie below a rounding of
  // bf16.
  for (size_t i = 0; i < r.out.size(); ++i)
    ASSERT_NEAR(r.out[i], means[i % static_cast<size_t>(c.head_dim)], 0x1p-8) << i;
}

TEST_P(AttentionFp8, GivesTheSameBitsTwice) {
  const AttentionCase c = shape(3, 777, {true, 300}, 2, 3);
  Problem problem(c, true, Packing::kPackedQkv, Inputs(c, true), attention::kHopper);
  const std::vector<uint8_t> once = problem.run_for_bits();
  EXPECT_TRUE(problem.run_for_bits() == once);
}

TEST_P(AttentionFp8, NaNStaysInItsRow) {
  const AttentionCase c = shape(1, 200, true);
  Inputs inputs(c, true);
  inputs.q[static_cast<size_t>(150 * c.heads * c.head_dim)] = NAN;  // query 150 of head 0
  const Outputs r = Problem(c, true, Packing::kSeparate, inputs, attention::kHopper).run();
  const auto at = [&](int64_t token, int64_t head) {
    return r.out[static_cast<size_t>((token * c.heads + head) * c.head_dim)];
  };
  EXPECT_TRUE(std::isnan(at(150, 0)));
  EXPECT_FALSE(std::isnan(at(150, 1)));
  EXPECT_FALSE(std::isnan(at(151, 0)));
}

INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionFp8, ::testing::Values(40, 64, 96, 128, 200, 256));

}  // namespace
}  // namespace tessera::test

// attention.h under dropout: every family that serves it against fp64 with the same mask; the mask itself,
// read from outputs and gradients; the same bits every time.
#include "tests/cuda/attention_problem.h"

namespace tessera::test {
namespace {

// A place and a first sequence that are not 0, so that nothing may forget them
constexpr Dropout dropout_of(int threshold) {
  return {.threshold = threshold,
          .key = 0xfedcba9876543210,
          .place = 5 * Dropout::kHeads,
          .first_sequence = 4'000'000'000};
}

class AttentionDropout : public AttentionKernels {
 protected:
  static AttentionCase shape(int64_t batch, int64_t tokens, int64_t kv_heads, int64_t group, int head_dim,
                             bool causal, int threshold) {
    return {batch,    tokens, kv_heads * group,        kv_heads,
            head_dim, causal, 1 / std::sqrt(head_dim), dropout_of(threshold)};
  }

  static void expect_agreement(const AttentionCase& c, bool bf16, const Inputs& inputs,
                               const AttentionReference& want, Packing packing) {
    for (int arch : archs_here(bf16)) {
      Problem problem(c, bf16, packing, inputs, arch);
      SCOPED_TRACE(::testing::Message()
                   << (bf16 ? "bf16" : "fp32") << ", arch " << arch << ", N = " << c.tokens << ", " << c.heads
                   << " heads of " << c.head_dim << ", " << c.kv_heads << " of keys"
                   << (c.mask.causal ? ", causal, " : ", full, ") << name_of(packing) << ", threshold "
                   << c.dropout.threshold);
      expect_within(errors_of(problem.run(), want, c.tokens == 1 ? cancelled_terms(c, inputs) : 0),
                    limits(bf16));
    }
  }
  static void expect_fp64(const AttentionCase& c, bool bf16, Packing packing = Packing::kPackedApart) {
    const Inputs inputs(c, bf16);
    expect_agreement(c, bf16, inputs, reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout),
                     packing);
  }
  // Against the fp32 kernels, which the tests above hold to fp64
  static void expect_fp32(const AttentionCase& c) {
    const Inputs inputs(c, true);
    const Outputs fp32 = Problem(c, false, Packing::kSeparate, inputs, device_arch()).run();
    expect_agreement(c, true, inputs,
                     {fp32.out, {fp32.lse.begin(), fp32.lse.end()}, fp32.dq, fp32.dk, fp32.dv},
                     Packing::kPackedQkv);
  }
};

TEST_F(AttentionDropout, AgreesWithFp64InBf16) {
  for (int head_dim : {8, 40, 64, 72, 96, 128, 136, 200, 256})
    for (bool causal : {true, false})
      for (int64_t tokens : {1, 17, 129, 193}) {
        expect_fp64(shape(tokens < 100 ? 2 : 1, tokens, 2, 3, head_dim, causal, 26), true);
        expect_fp64(shape(1, tokens, 3, 1, head_dim, causal, 128), true, Packing::kSeparate);
      }
}

TEST_F(AttentionDropout, AgreesWithFp64InF32) {
  for (int head_dim : {8, 16, 32, 40, 64, 96, 128, 200, 256})
    for (bool causal : {true, false})
      for (int64_t tokens : {1, 17, 129, 193}) {
        expect_fp64(shape(tokens < 100 ? 2 : 1, tokens, 2, 3, head_dim, causal, 26), false);
        expect_fp64(shape(1, tokens, 3, 1, head_dim, causal, 128), false, Packing::kSeparate);
      }
}

// Scores so far apart that many probabilities are too small to matter, down to 0
TEST_F(AttentionDropout, SharpProbabilitiesAgreeWithFp64) {
  for (int head_dim : {64, 96, 128})
    for (bool causal : {true, false}) {
      AttentionCase sharp = shape(1, 193, 2, 1, head_dim, causal, 51);
      sharp.scale = 1;
      expect_fp64(sharp, true);
      expect_fp64(sharp, false);
    }
}

TEST_F(AttentionDropout, LongSequencesAgreeWithFp32) {
  for (int head_dim : {64, 80, 128})
    for (bool causal : {true, false}) {
      expect_fp32(shape(1, 1000, 2, 2, head_dim, causal, 26));
      expect_fp32(shape(2, 2047, 1, 4, head_dim, causal, 51));
      expect_fp32(shape(16, 512, 8, 1, head_dim, causal, 26));  // more tiles than there are multiprocessors
    }
}

// All keys that a query sees weigh the same. V has a 1 in column d of key first + d, and dO in column d of
// query first + d: so out shows which of these keys each query keeps, and dV which keys each of these queries
// keeps.
Inputs inputs_that_show(const AttentionCase& c, int64_t first) {
  Inputs inputs(c, true, 0);
  for (std::vector<double>* x : {&inputs.v, &inputs.dout}) {
    std::fill(x->begin(), x->end(), 0.0);
    for (int64_t head = 0; head < c.batch * c.heads; ++head)
      for (int64_t d = 0; d < c.head_dim && first + d < c.tokens; ++d)
        (*x)[(head * c.tokens + first + d) * c.head_dim + d] = 1;
  }
  return inputs;
}

// Elements that differ from the mask. A bf16 kernel may mark what it drops by a power of two that rounds to
// nothing: what is kept weighs at least 1 / tokens.
int64_t wrong_elements(const AttentionCase& c, const Outputs& r, int64_t first) {
  const auto kept = [](double weight) { return weight > 1e-15; };
  int64_t wrong = 0;
  for (int64_t head = 0; head < c.batch * c.heads; ++head)
    for (int64_t i = 0; i < c.tokens; ++i)
      for (int64_t d = 0; d < c.head_dim && first + d < c.tokens; ++d) {
        const auto wanted = [&](int64_t query, int64_t key) {
          return (!c.mask.causal || key <= query) && c.factor(head / c.heads, head % c.heads, query, key) > 0;
        };
        const int64_t element = (head * c.tokens + i) * c.head_dim + d;
        wrong += kept(r.out[element]) != wanted(i, first + d);
        wrong += kept(r.dv[element]) != wanted(first + d, i);
      }
  return wrong;
}

TEST_F(AttentionDropout, DropsTheScoresOfTheMask) {
  for (bool bf16 : {true, false})
    for (int arch : archs_here(bf16))
      for (int head_dim : {16, 64, 96, 128, 256})
        for (bool causal : {true, false}) {
          const AttentionCase c = shape(2, 333, 3, 1, head_dim, causal, 77);
          for (int64_t first = 0; first < c.tokens; first += 5 * head_dim) {
            SCOPED_TRACE(::testing::Message()
                         << (bf16 ? "bf16" : "fp32") << ", arch " << arch << ", head dim " << head_dim
                         << (causal ? ", causal" : ", full") << ", from " << first << " on");
            Problem problem(c, bf16, Packing::kPackedQkv, inputs_that_show(c, first), arch);
            EXPECT_EQ(wrong_elements(c, problem.run(), first), 0);
          }
        }
}

TEST_F(AttentionDropout, GivesTheSameBits) {
  for (bool bf16 : {true, false})
    for (int arch : archs_here(bf16))
      for (int head_dim : {64, 96, 128, 256})
        for (bool causal : {true, false}) {
          AttentionCase c = shape(2, 1000, 10, 2, head_dim, causal, 26);  // more CTAs than fit at a time
          const Inputs inputs(c, bf16);
          Problem problem(c, bf16, Packing::kPackedQkv, inputs, arch);
          const std::vector<uint8_t> bits = problem.run_for_bits();
          for (int repeat = 0; repeat < 5; ++repeat)
            ASSERT_TRUE(problem.run_for_bits() == bits)
                << (bf16 ? "bf16" : "fp32") << ", arch " << arch << ", head dim " << head_dim;
          ++c.dropout.key;
          EXPECT_FALSE(Problem(c, bf16, Packing::kPackedQkv, inputs, arch).run_for_bits() == bits)
              << "another key drops the same scores";
        }
}

// Two batches of one sequence are a batch of two.
TEST_F(AttentionDropout, ASplitIntoBatchesKeepsTheBits) {
  for (bool bf16 : {true, false})
    for (int arch : archs_here(bf16))
      for (int head_dim : {64, 128, 256}) {
        const AttentionCase both = shape(2, 300, 2, 1, head_dim, true, 51);
        const Inputs inputs(both, bf16);
        const Outputs whole = Problem(both, bf16, Packing::kPackedQkv, inputs, arch).run();
        for (int64_t b = 0; b < 2; ++b) {
          AttentionCase one = both;
          one.batch = 1;
          one.dropout.first_sequence += static_cast<uint32_t>(b);
          const auto part = [&](const std::vector<double>& x) {
            const auto half = static_cast<int64_t>(x.size() / 2);
            return std::vector<double>(x.begin() + b * half, x.begin() + (b + 1) * half);
          };
          Inputs of_one(one, bf16);
          of_one.q = part(inputs.q), of_one.k = part(inputs.k), of_one.v = part(inputs.v);
          of_one.dout = part(inputs.dout);
          const Outputs r = Problem(one, bf16, Packing::kPackedQkv, of_one, arch).run();
          EXPECT_TRUE(r.out == part(whole.out) && r.dq == part(whole.dq) && r.dk == part(whole.dk) &&
                      r.dv == part(whole.dv))
              << (bf16 ? "bf16" : "fp32") << ", arch " << arch << ", head dim " << head_dim << ", sequence "
              << b;
        }
      }
}

// Three of six heads with a place of their own are those heads of the whole.
TEST_F(AttentionDropout, SomeHeadsAtATimeAreThoseOfTheWhole) {
  for (bool bf16 : {true, false})
    for (int arch : archs_here(bf16))
      for (int head_dim : {64, 128, 256})
        for (bool causal : {true, false}) {
          const AttentionCase all = shape(1, 193, 2, 3, head_dim, causal, 51);
          const Inputs inputs(all, bf16);
          const Outputs whole = Problem(all, bf16, Packing::kPackedQkv, inputs, arch).run();
          for (int64_t half : {0, 1}) {
            AttentionCase three = all;
            three.heads = 3, three.kv_heads = 1;
            three.dropout.place += static_cast<uint32_t>(3 * half);
            const auto part = [&]<class T>(const std::vector<T>& x) {
              const auto size = static_cast<int64_t>(x.size() / 2);
              return std::vector<T>(x.begin() + half * size, x.begin() + (half + 1) * size);
            };
            Inputs of_three(three, bf16);
            of_three.q = part(inputs.q), of_three.k = part(inputs.k), of_three.v = part(inputs.v);
            of_three.dout = part(inputs.dout);
            const std::vector<float> lse = part(whole.lse);
            SCOPED_TRACE(::testing::Message()
                         << (bf16 ? "bf16" : "fp32") << ", arch " << arch << ", head dim " << head_dim
                         << (causal ? ", causal" : ", full") << ", heads from " << 3 * half << " on");
            expect_within(errors_of(Problem(three, bf16, Packing::kPackedQkv, of_three, arch).run(),
                                    {part(whole.out),
                                     {lse.begin(), lse.end()},
                                     part(whole.dq),
                                     part(whole.dk),
                                     part(whole.dv)}),
                          limits(bf16));
          }
        }
}

}  // namespace
}  // namespace tessera::test

// attention.h on a device: the same bits every time, calls that only enqueue, and extreme values.
#include "tests/cuda/attention_problem.h"

namespace tessera::test {
namespace {

Outputs run(const AttentionCase& c, bool bf16, const Inputs& inputs, int arch) {
  return Problem(c, bf16, Packing::kPackedQkv, inputs, arch).run();
}

// Head dims that fill their tiles; and of each width of tile also one that does not
constexpr std::initializer_list<int> kWholeHeadDims = {64, 128}, kHeadDims = {40, 64, 96, 128, 200, 256};

// f(bf16, head_dim, causal, arch) for every family of kernels
template <class F>
void for_each_kernel(std::initializer_list<int> head_dims, F&& f) {
  for (bool bf16 : {true, false}) {
    for (int arch : archs_here(bf16)) {
      for (int head_dim : head_dims) {
        for (bool causal : {true, false}) {
          SCOPED_TRACE(::testing::Message() << (bf16 ? "bf16" : "fp32") << ", arch " << arch << ", head dim "
                                            << head_dim << (causal ? ", causal" : ", full"));
          f(bf16, head_dim, causal, arch);
        }
      }
    }
  }
}

// Several tiles of queries and of keys, the last ones in part: small enough for compute-sanitizer, which
// takes minutes for what takes a second without.
TEST_F(AttentionKernels, OneOfEachKernel) {
  for_each_kernel(kHeadDims, [](bool bf16, int head_dim, bool causal, int arch) {
    const AttentionCase c = {1, 260, 2, 1, head_dim, causal, 1 / std::sqrt(head_dim)};
    const Inputs inputs(c, bf16);
    const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
    expect_within(errors_of(run(c, bf16, inputs, arch), want), limits(bf16));
  });
}

// ---- the same bits ----

class AttentionOrder : public AttentionKernels {
 protected:
  static void expect(const AttentionCase& c, int arch, int repeats) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " tokens, arch " << arch << ", head dim " << c.head_dim
                                      << (c.mask.causal ? ", causal" : ", full"));
    Problem problem(c, true, Packing::kPackedQkv, Inputs(c, true), arch);
    const std::vector<uint8_t> bits = problem.run_for_bits();
    for (int repeat = 1; repeat < repeats; ++repeat)
      ASSERT_TRUE(problem.run_for_bits() == bits) << "run " << repeat;
  }
};

TEST_F(AttentionOrder, GivesTheSameBits) {
  for (int arch : archs_here(true))
    for (int head_dim : {64, 96, 128, 256})
      for (bool causal : {true, false})  // more CTAs than fit at a time
        expect({2, 1000, 20, 10, head_dim, causal, 0.1}, arch, 20);
}

// More key blocks than multiprocessors, which the backward on Hopper takes in waves: groups of heads that
// take turns and one that is left over, query heads that share their keys
TEST_F(AttentionOrder, GivesTheSameBitsForLongSequences) {
  for (int arch : archs_here(true))
    for (int head_dim : {64, 80, 128})
      for (bool causal : {true, false}) {
        expect({1, 17'003, 3, 3, head_dim, causal, 0.1}, arch, 5);
        expect({1, 17'003, 4, 2, head_dim, causal, 0.1}, arch, 5);
      }
}

// A call that allocated, synchronised or used another stream could not be captured.
TEST_F(AttentionKernels, AGraphCapturesTheCalls) {
  cudaStream_t stream;
  cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (bool bf16 : {true, false}) {
    for (int arch : archs_here(bf16)) {
      const AttentionCase c = {2, 300, 4, 2, 64, true, 0.125};
      Problem problem(c, bf16, Packing::kPackedQkv, Inputs(c, bf16), arch);
      const std::vector<uint8_t> bits = problem.run_for_bits();
      cudaGraph_t graph;
      cudaGraphExec_t replay;
      cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      problem.enqueue(stream);
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "arch " << arch;
      cuda_ok(cudaGraphInstantiate(&replay, graph, 0));
      for (int repeat = 0; repeat < 2; ++repeat) {
        problem.poison_outputs();
        cuda_ok(cudaDeviceSynchronize());
        cuda_ok(cudaGraphLaunch(replay, stream));
        EXPECT_TRUE(problem.bits() == bits) << "arch " << arch;
      }
      cuda_ok(cudaGraphExecDestroy(replay));
      cuda_ok(cudaGraphDestroy(graph));
    }
  }
  cuda_ok(cudaStreamDestroy(stream));
}

// ---- extreme values ----

TEST_F(AttentionKernels, ScoresOfTenThousand) {
  for_each_kernel(kWholeHeadDims, [](bool bf16, int head_dim, bool causal, int arch) {
    const AttentionCase c = {1, 203, 4, 2, head_dim, causal, 1};
    const Inputs inputs(c, bf16, 20);  // q k^T: standard deviation 20 20 sqrt(D), 3,200 or 4,500
    const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
    ASSERT_GT(largest(want.lse), 1e4);
    Limits limit = limits(bf16);
    limit.out = std::fmax(limit.out, tolerance::kScoresOfTenThousand);
    limit.gradient = std::fmax(limit.gradient, tolerance::kScoresOfTenThousand);
    expect_within(errors_of(run(c, bf16, inputs, arch), want, cancelled_terms(c, inputs)), limit);
  });
}

// Every visible key has the same weight, and no gradient reaches q and k.
TEST_F(AttentionKernels, ScaleOfZero) {
  for_each_kernel(kHeadDims, [](bool bf16, int head_dim, bool causal, int arch) {
    const AttentionCase c = {1, 203, 4, 2, head_dim, causal, 0};
    const Inputs inputs(c, bf16);
    const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
    expect_within(errors_of(run(c, bf16, inputs, arch), want), limits(bf16));
  });
}

// q[0] in [1, 2], and k[0] such that the score leaves the range of fp32 for the keys that `hidden` names.
Inputs with_scores_of_minus_infinity(const AttentionCase& c, bool bf16, const std::vector<bool>& hidden) {
  Inputs inputs(c, bf16);
  const auto round = [&](double x) {
    return bf16 ? from_bf16(to_bf16(static_cast<float>(x))) : static_cast<float>(x);
  };
  for (int64_t row = 0; row < c.rows(); ++row) inputs.q[row * c.head_dim] = round(1.5 + row % 3 * 0.25);
  for (int64_t row = 0; row < c.kv_rows(); ++row) {
    double& first = inputs.k[row * c.head_dim];
    first = hidden[row % c.tokens] ? round(-3e38) : std::fmax(-2, std::fmin(first, 2));
  }
  return inputs;
}

TEST_F(AttentionKernels, ScoresOfMinusInfinity) {
  constexpr int64_t kTokens = 300;
  using Hidden = std::vector<bool>;
  Hidden all_but_the_first(kTokens, true), every_third(kTokens), the_first_half(kTokens), all(kTokens, true);
  all_but_the_first[0] = false;
  for (int64_t j = 0; j < kTokens; ++j) {
    every_third[j] = j % 3 == 1;
    the_first_half[j] = j < 133;  // causal: rows 0 to 132 see no other key
  }
  for (const Hidden& hidden : {all_but_the_first, every_third, the_first_half, all}) {
    for_each_kernel(kHeadDims, [&](bool bf16, int head_dim, bool causal, int arch) {
      const AttentionCase c = {1, kTokens, 2, 1, head_dim, causal, 1 / std::sqrt(head_dim)};
      const Inputs inputs = with_scores_of_minus_infinity(c, bf16, hidden);
      const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
      const Outputs r = run(c, bf16, inputs, arch);
      // One key in sight: dS is what is left of two equal terms, as in
      // cancelled_terms(), of the finite values.
      const double floor = hidden[1] && !hidden[0] ? c.scale * std::sqrt(head_dim) * largest(inputs.q) : 0;
      expect_within(errors_of(r, want, floor), limits(bf16));
      if (hidden[0]) {  // row 0 sees nothing, or, without a mask, what every row sees
        EXPECT_EQ(std::isfinite(r.lse[0]), !causal && !hidden[kTokens - 1]);
        EXPECT_EQ(r.out[0] == 0, !std::isfinite(r.lse[0]));
      }
    });
  }
}

TEST_F(AttentionKernels, NanStaysNan) {
  for_each_kernel(kHeadDims, [](bool bf16, int head_dim, bool causal, int arch) {
    const AttentionCase c = {1, 300, 4, 2, head_dim, causal, 0.125};
    Inputs inputs(c, bf16);
    const auto row = [&](int64_t head, int64_t token) { return (head * c.tokens + token) * c.head_dim; };
    inputs.q[0] = NAN;          // head 0, token 0
    inputs.k[row(1, 5)] = NAN;  // head 1 of the keys, token 5: heads 2 and 3 of the queries
    const Outputs r = run(c, bf16, inputs, arch);
    EXPECT_TRUE(std::isnan(r.out[0]));
    EXPECT_TRUE(std::isnan(r.lse[0]));
    EXPECT_TRUE(std::isnan(r.dq[0]));
    EXPECT_TRUE(std::isnan(r.dv[0]));
    EXPECT_FALSE(std::isnan(r.out[row(0, 1)])) << "row 1 does not read q of row 0";
    EXPECT_FALSE(std::isnan(r.out[row(1, 0)])) << "head 1 does not read q of head 0";
    for (int64_t head : {2, 3}) {
      EXPECT_TRUE(std::isnan(r.out[row(head, 5)]));
      EXPECT_TRUE(std::isnan(r.out[row(head, 299)]));
      EXPECT_EQ(std::isnan(r.out[row(head, 4)]), !causal) << "row 4 sees key 5 only without a mask";
    }
  });
}

}  // namespace
}  // namespace tessera::test

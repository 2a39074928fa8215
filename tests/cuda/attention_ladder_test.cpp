// The rungs of the ladder that are called through the structs of attention.h: each against fp64, as the
// benchmark calls it. The kernels of the row rung, which attn_forward() never chooses, at every size.
#include "tests/cuda/attention_problem.h"
#include "tests/process.h"
#include "train/bench/ladder.h"

namespace tessera::test {
namespace {

using attention::Rung;

class RungProblem final : public Problem {
 public:
  RungProblem(const Rung& rung, const AttentionCase& c, Packing packing, const Inputs& inputs)
      : Problem(c, rung.dtype() == DType::kBF16, packing, inputs, device_arch()), rung_(rung) {}

  void enqueue(cudaStream_t stream) const override {
    const AttnForward f = forward();
    AttnBackward g = backward();
    const size_t wanted = rung_.family->backward_workspace(g.problem);
    EXPECT_LE(wanted, g.workspace_bytes);
    g.workspace_bytes = wanted;
    for (AttnStatus status : {attention::run_forward(*rung_.family, f, device_arch(), stream),
                              attention::run_backward(*rung_.family, g, device_arch(), stream)})
      EXPECT_EQ(status, ATTN_OK) << attn_status_text(status);
  }

 private:
  const Rung& rung_;
};

const Rung& rung_named(std::string_view name) {
  for (const Rung& rung : attention::ladder())
    if (name == rung.name) return rung;
  throw std::runtime_error("no such rung");
}

Errors errors_on(const Rung& rung, const AttentionCase& c, Packing packing) {
  const Inputs inputs(c, rung.dtype() == DType::kBF16);
  const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
  RungProblem problem(rung, c, packing, inputs);
  return errors_of(problem.run(), want, c.tokens == 1 ? cancelled_terms(c, inputs) : 0);
}

struct AttentionLadder : AttentionKernels {};

TEST_F(AttentionLadder, EveryRungAgreesWithFp64) {
  const DeviceTraits device{Device::kCuda, device_arch(), "this device"};
  for (const Rung& rung : attention::ladder()) {
    for (int head_dim : {64, 80, 128, 256}) {
      for (bool causal : {true, false}) {
        const AttentionCase c = {2, 300, 4, 2, head_dim, causal, 1 / std::sqrt(head_dim)};
        const AttnProblem p = {.struct_size = sizeof(AttnProblem),
                               .dtype = attn_dtype(rung.dtype()),
                               .batch = c.batch,
                               .tokens = c.tokens,
                               .kv_tokens = c.tokens,
                               .heads = c.heads,
                               .kv_heads = c.kv_heads,
                               .head_dim = head_dim,
                               .mask = attn_mask(causal),
                               .scale = static_cast<float>(c.scale),
                               .dropout = {}};
        const std::string why_not = rung.why_not(p, device);
        if (!rung.family || !why_not.empty()) continue;  // naive is an operation of the Backend: ops_test.cpp
        if (rung.family->in_fp8) continue;               // attention_fp8_test.cpp
        if (rung.family->chooses) continue;              // mixture_test.cpp
        SCOPED_TRACE(::testing::Message()
                     << rung.name << ", head dim " << head_dim << (causal ? ", causal" : ", full"));
        expect_within(errors_on(rung, c, Packing::kPackedQkv), limits(rung.dtype() == DType::kBF16));
      }
    }
  }
}

TEST_F(AttentionLadder, TheBenchmarkClimbsIt) {
  const testing::ProcessResult result =
      testing::run_process(BENCH_BINARY,
                           {"attention", "--rungs", "all", "--seq-lens", "200,256", "--tokens", "512",
                            "--channels", "256", "--repeats", "1"},
                           {});
  EXPECT_EQ(result.status, 0) << result.error;
  for (const Rung& rung : attention::ladder())
    EXPECT_NE(result.out.find(rung.name), std::string::npos) << rung.name << "\n" << result.out;
  for (const char* bad : {"failed", "out of memory", "over"})
    EXPECT_EQ(result.out.find(std::string("skipped: ") + bad), std::string::npos)
        << result.out << result.error;
}

TEST_F(AttentionLadder, RowAgreesWithFp64AtEverySize) {
  const Rung& row = rung_named("row");
  Errors worst;
  for (int head_dim : {64, 128}) {
    for (bool causal : {true, false}) {
      for (int64_t tokens : {1, 2, 15, 63, 64, 65, 127, 128, 129, 203, 511}) {
        const int64_t group = int64_t{1} << tokens % 4, kv_heads = 1 + tokens % 2;
        const AttentionCase c = {tokens < 200 ? 2 : 1,   tokens, kv_heads * group, kv_heads, head_dim, causal,
                                 1 / std::sqrt(head_dim)};
        for (Packing packing : {Packing::kPackedQkv, Packing::kSeparate}) {
          SCOPED_TRACE(::testing::Message() << "N " << tokens << ", head dim " << head_dim << ", group "
                                            << group << (causal ? ", causal" : ", full"));
          const Errors errors = errors_on(row, c, packing);
          expect_within(errors, limits(true));
          worst.take(errors);
        }
      }
    }
  }
  print_worst(device_arch(), worst);
}

TEST_F(AttentionLadder, RowGivesTheSameBits) {
  const AttentionCase c = {1, 203, 4, 2, 64, true, 0.125};
  const Inputs inputs(c, true);
  RungProblem problem(rung_named("row"), c, Packing::kPackedQkv, inputs);
  const std::vector<uint8_t> bits = problem.run_for_bits();
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(problem.run_for_bits() == bits);
}

// 96 KB of scores: as long as shared memory allows, and where it must be asked for
TEST_F(AttentionLadder, RowAtItsLongest) {
  for (int64_t tokens : {int64_t{10'240}, int64_t{11'900}, attention::row::kFamily.most_tokens}) {
    for (int head_dim : {64, 128}) {
      const AttentionCase c = {1, tokens, 1, 1, head_dim, true, 1 / std::sqrt(head_dim)};
      const Inputs inputs(c, true);
      RungProblem problem(rung_named("row"), c, Packing::kPackedQkv, inputs);
      const Outputs got = problem.run();
      const Outputs want = Problem(c, true, Packing::kPackedQkv, inputs, 80).run();
      const AttentionReference reference{
          want.out, {want.lse.begin(), want.lse.end()}, want.dq, want.dk, want.dv};
      const Limits limit = limits(true);  // two kernels in bf16, each so far from the truth
      expect_within(errors_of(got, reference), {2 * limit.out, 2 * limit.gradient, 2 * limit.lse});
    }
  }
}

TEST_F(AttentionLadder, RowTakesScoresOfMinusInfinity) {
  const AttentionCase c = {1, 70, 1, 1, 64, true, 1};
  Inputs inputs(c, true);
  for (int64_t d = 0; d < c.head_dim; ++d) {  // all scores of key 0: the only ones of row 0
    inputs.k[d] = -3e38;
    for (int64_t t = 0; t < c.tokens; ++t) inputs.q[t * c.head_dim + d] = 2;
  }
  RungProblem problem(rung_named("row"), c, Packing::kPackedQkv, inputs);
  const Outputs r = problem.run();
  EXPECT_EQ(r.lse[0], -INFINITY);
  EXPECT_TRUE(std::isfinite(r.lse[1]));
  for (int64_t d = 0; d < c.head_dim; ++d) EXPECT_EQ(r.out[d], 0);
  for (const std::vector<double>* x : {&r.out, &r.dq, &r.dk, &r.dv})
    for (double value : *x) ASSERT_TRUE(std::isfinite(value));
}

TEST_F(AttentionLadder, RowStaysNanWhereNanIs) {
  const AttentionCase c = {1, 70, 1, 1, 64, true, 0.125};
  Inputs inputs(c, true);
  inputs.k[5 * c.head_dim] = NAN;
  RungProblem problem(rung_named("row"), c, Packing::kPackedQkv, inputs);
  const Outputs r = problem.run();
  EXPECT_FALSE(std::isnan(r.out[4 * c.head_dim]));
  EXPECT_TRUE(std::isnan(r.out[5 * c.head_dim]));
  EXPECT_TRUE(std::isnan(r.lse[69]));
}

}  // namespace
}  // namespace tessera::test

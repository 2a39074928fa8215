// Attention by cuDNN beside ours: the same arguments, the same log-sum-exp, so that either's forward serves
// either's backward. Against the CPU backend and in training it is tested where the other kinds are:
// ops_test.cpp, model_test.cpp.
#include "kernels/attention/cudnn.h"

#include "tests/attn_mask.h"
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

using attention::CudnnAttention;

enum class By { kUs, kCudnn };

class CudnnKernels : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    std::string why_not;
    if (!attention::cudnn_available(why_not)) GTEST_SKIP() << "no cuDNN: " << why_not;
    arch_ = cuda().backend().traits().arch;
    cudnn_ = std::make_unique<CudnnAttention>();
  }

  struct Results {
    Twin out, lse, gradients;
  };

  // Of packed inputs [B, T, H + 2 K, D]: the queries' heads, then the keys', then the values'
  Results run(const AttnProblem& p, const Twin& qkv, const Twin& dout, By forward, By backward,
              bool deterministic) {
    const Shape packed = qkv.cuda.shape;
    const Results r{output(DType::kBF16, dout.cuda.shape), output(DType::kF32, {p.batch, p.heads, p.tokens}),
                    output(DType::kBF16, packed)};
    const AttnForward f = forward_args(p, qkv.cuda, r.out.cuda, r.lse.cuda);
    AttnBackward b = backward_args(f, dout.cuda, r.gradients.cuda, deterministic);
    const auto lend = [&](int64_t bytes) { return output(DType::kF32, {bytes / 4 + 1}).cuda; };
    if (forward == By::kUs) {
      EXPECT_EQ(attn_forward(&f, arch_, nullptr), ATTN_OK);
    } else {
      const Tensor workspace = lend(attention::cudnn_forward_workspace(p));
      cudnn_->forward(f, workspace.data, workspace.bytes(), nullptr);
    }
    const Tensor workspace =
        lend(backward == By::kUs
                 ? static_cast<int64_t>(attn_backward_workspace(&p, arch_))
                 : attention::cudnn_backward_workspace(p, attention::cudnn_sums(arch_, deterministic)));
    b.workspace = workspace.data;
    b.workspace_bytes = workspace.bytes();
    if (backward == By::kUs) {
      EXPECT_EQ(attn_backward(&b, arch_, nullptr), ATTN_OK);
    } else {
      cudnn_->backward(b, nullptr);
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return r;
  }

  static AttnProblem problem(int64_t tokens, int64_t heads, int64_t kv_heads, int head_dim, bool causal) {
    return {.struct_size = sizeof(AttnProblem),
            .dtype = ATTN_BF16,
            .batch = 2,
            .tokens = tokens,
            .kv_tokens = tokens,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .mask = test::attn_mask(causal),
            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
            .dropout = {}};
  }
  static Shape packed_shape(const AttnProblem& p) {
    return {p.batch, p.tokens, p.heads + 2 * p.kv_heads, p.head_dim};
  }
  static Shape out_shape(const AttnProblem& p) { return {p.batch, p.tokens, p.heads, p.head_dim}; }

  static AttnTensor heads_from(const Tensor& t, int64_t first) {  // of a tensor [B, T, heads, D]
    const int64_t T = t.shape[1], H = t.shape[2], D = t.shape[3];
    return {t.as<uint16_t>() + first * D, T * H * D, H * D, D};
  }
  static AttnForward forward_args(const AttnProblem& p, const Tensor& qkv, const Tensor& out,
                                  const Tensor& lse) {
    return {.q = heads_from(qkv, 0),
            .k = heads_from(qkv, p.heads),
            .v = heads_from(qkv, p.heads + p.kv_heads),
            .out = heads_from(out, 0),
            .lse = lse.as<float>(),
            .workspace = nullptr,
            .workspace_bytes = 0,
            .problem = p};
  }
  static AttnBackward backward_args(const AttnForward& f, const Tensor& dout, const Tensor& dqkv,
                                    bool deterministic) {
    const AttnProblem& p = f.problem;
    return {.q = f.q,
            .k = f.k,
            .v = f.v,
            .out = f.out,
            .dout = heads_from(dout, 0),
            .lse = f.lse,
            .dq = heads_from(dqkv, 0),
            .dk = heads_from(dqkv, p.heads),
            .dv = heads_from(dqkv, p.heads + p.kv_heads),
            .workspace = nullptr,
            .workspace_bytes = 0,
            .deterministic = deterministic,
            .problem = p};
  }

  // The largest difference over the largest value
  double difference(const Twin& a, const Twin& b) {
    const std::vector<float> x = floats_of(a.cuda), y = floats_of(b.cuda);
    double worst = 0, largest = 1e-30;
    for (size_t i = 0; i < x.size(); ++i) {
      const double off = std::abs(static_cast<double>(x[i]) - y[i]);
      if (!(off <= worst)) worst = off;  // NaN stays
      if (std::isnan(worst)) return worst;
      largest = std::max(largest, std::abs(static_cast<double>(y[i])));
    }
    return worst / largest;
  }

  int arch_ = 0;
  std::unique_ptr<CudnnAttention> cudnn_;
};

// Two results that both lie within a tolerance of the exact one lie within twice of one another.
TEST_F(CudnnKernels, EithersForwardServesEithersBackward) {
  namespace tolerance = tolerance::attention;
  double worst_out = 0, worst_lse = 0, worst_gradient = 0;
  for (const int head_dim : {64, 128})
    for (const int64_t tokens : {65, 384})
      for (const int64_t kv_heads : {4, 2, 1})
        for (const bool causal : {true, false})
          for (const bool deterministic : {true, false}) {
            SCOPED_TRACE(fmt::format("D {} N {} kv heads {} {} {}", head_dim, tokens, kv_heads,
                                     causal ? "causal" : "full",
                                     deterministic ? "deterministic" : "any order"));
            const AttnProblem p = problem(tokens, 4, kv_heads, head_dim, causal);
            const Twin qkv = input(DType::kBF16, packed_shape(p)), dout = input(DType::kBF16, out_shape(p));
            const Results ours = run(p, qkv, dout, By::kUs, By::kUs, deterministic);
            for (const auto& [forward, backward] :
                 {std::pair{By::kCudnn, By::kCudnn}, {By::kUs, By::kCudnn}, {By::kCudnn, By::kUs}}) {
              const Results other = run(p, qkv, dout, forward, backward, deterministic);
              const double out = difference(other.out, ours.out), lse = difference(other.lse, ours.lse),
                           gradient = difference(other.gradients, ours.gradients);
              EXPECT_LT(out, 2 * tolerance::kBf16Out);
              EXPECT_LT(lse, 2 * tolerance::kLogSumExp);
              EXPECT_LT(gradient, 2 * tolerance::kBf16Gradient);
              worst_out = std::max(worst_out, out);
              worst_lse = std::max(worst_lse, lse);
              worst_gradient = std::max(worst_gradient, gradient);
            }
          }
  fmt::print("[ measured ] cuDNN {} and ours: out {:.1e}, log-sum-exp {:.1e}, gradients {:.1e}\n",
             attention::cudnn_version(), worst_out, worst_lse, worst_gradient);
}

TEST_F(CudnnKernels, DeterministicGivesTheSameBits) {
  const AttnProblem p = problem(777, 4, 4, 64, false);
  const Twin qkv = input(DType::kBF16, packed_shape(p)), dout = input(DType::kBF16, out_shape(p));
  const std::vector<char> first = bytes_of(run(p, qkv, dout, By::kCudnn, By::kCudnn, true).gradients.cuda);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(first, bytes_of(run(p, qkv, dout, By::kCudnn, By::kCudnn, true).gradients.cuda));
}

TEST_F(CudnnKernels, AsksForNoMoreThanTheFormulas) {
  double fullest = 0;
  for (const int64_t tokens : {2, 65, 129, 1024})
    for (const int head_dim : {8, 64, 128})
      for (const int64_t kv_heads : {4, 1}) {
        const AttnProblem p = problem(tokens, 4, kv_heads, head_dim, true);
        const Twin qkv = output(DType::kBF16, packed_shape(p)), out = output(DType::kBF16, out_shape(p)),
                   lse = output(DType::kF32, {p.batch, p.heads, p.tokens});
        const AttnForward f = forward_args(p, qkv.cuda, out.cuda, lse.cuda);
        EXPECT_LE(cudnn_->forward_workspace(f), attention::cudnn_forward_workspace(p));
        for (const bool deterministic : {true, false}) {
          const int64_t bytes =
              cudnn_->backward_workspace(backward_args(f, out.cuda, qkv.cuda, deterministic));
          const int64_t bound =
              attention::cudnn_backward_workspace(p, attention::cudnn_sums(arch_, deterministic));
          EXPECT_LE(bytes, bound) << "N " << tokens << " D " << head_dim << " kv heads " << kv_heads
                                  << " deterministic " << deterministic;
          fullest = std::max(fullest, static_cast<double>(bytes) / static_cast<double>(bound));
        }
      }
  fmt::print("[ measured ] the backward asks for up to {:.1f}% of what the formula lends\n", 100 * fullest);
}

TEST_F(CudnnKernels, RefusesWithReasons) {
  const AttnProblem p = problem(1, 4, 4, 64, true);
  const Twin qkv = input(DType::kBF16, packed_shape(p)), out = output(DType::kBF16, out_shape(p)),
             lse = output(DType::kF32, {p.batch, p.heads, p.tokens});
  const AttnForward f = forward_args(p, qkv.cuda, out.cuda, lse.cuda);
  const std::string one_token =
      message_of([&] { cudnn_->backward(backward_args(f, out.cuda, qkv.cuda, true), nullptr); });
  EXPECT_NE(one_token.find("cuDNN, backward"), std::string::npos) << one_token;
  AttnForward wide = f;
  wide.problem.head_dim = 136;
  const std::string head_dim = message_of([&] { cudnn_->forward(wide, nullptr, 0, nullptr); });
  EXPECT_NE(head_dim.find("at most 128"), std::string::npos) << head_dim;
  const AttnProblem two = problem(64, 4, 4, 64, true);
  const Twin more = input(DType::kBF16, packed_shape(two)), dout = input(DType::kBF16, out_shape(two)),
             sums = output(DType::kF32, {two.batch, two.heads, two.tokens});
  const AttnForward g = forward_args(two, more.cuda, dout.cuda, sums.cuda);
  const std::string no_workspace =
      message_of([&] { cudnn_->backward(backward_args(g, dout.cuda, more.cuda, true), nullptr); });
  EXPECT_NE(no_workspace.find("workspace, got 0"), std::string::npos) << no_workspace;
}

TEST(CudnnBuild, WithoutCudnnEveryUseIsRefused) {
  if (attention::cudnn_built()) GTEST_SKIP() << "this build has cuDNN";
  std::string why_not;
  EXPECT_FALSE(attention::cudnn_available(why_not));
  EXPECT_NE(why_not.find("tools/install --cudnn"), std::string::npos);
  EXPECT_THROW(CudnnAttention(), Error);
}

}  // namespace
}  // namespace tessera

// attention.h on a device, against fp64 on the CPU.
#include "tests/cuda/attention_fixture.h"
#include "tests/tolerances.h"

namespace tessera::test {
namespace {

namespace tolerance = tessera::tolerance::attention;

struct Inputs {
  std::vector<double> q, k, v, dout;

  Inputs(const AttentionCase& c, bool bf16, double size = 1) {
    const int64_t count = c.rows() * c.head_dim;
    q = random_values(count, 1, size, bf16);
    k = random_values(count, 2, size, bf16);
    v = random_values(count, 3, 1, bf16);
    dout = random_values(count, 4, 1, bf16);
  }
};

struct Outputs {
  std::vector<double> out, dq, dk, dv;
  std::vector<float> lse;
};

// Inputs and outputs of one problem on the device; run() may be called again and again.
class Problem {
 public:
  Problem(const AttentionCase& c, bool bf16, Packing packing, const Inputs& inputs, int arch = device_arch())
      : case_(c),
        arch_(arch),
        elements_{case_, bf16},
        layouts_(c, packing),
        qkv_(layouts_.qkv_elements * elements_.size()),
        dqkv_(qkv_.bytes()),
        out_(layouts_.out_elements * elements_.size()),
        dout_(out_.bytes()),
        lse_(c.rows() * sizeof(float)),
        workspace_(attn_backward_workspace(problem(), arch, 0)) {
    std::vector<uint8_t> image(qkv_.bytes(), 0xff);  // gaps stay NaN: nothing may be read there
    elements_.put(image, layouts_.q, inputs.q);
    elements_.put(image, layouts_.k, inputs.k);
    elements_.put(image, layouts_.v, inputs.v);
    qkv_.upload(image);
    image.assign(dout_.bytes(), 0xff);
    elements_.put(image, layouts_.out, inputs.dout);
    dout_.upload(image);
  }

  const AttnProblem* problem() {
    problem_ = {elements_.bf16 ? ATTN_BF16 : ATTN_F32,
                case_.batch,
                case_.tokens,
                case_.heads,
                case_.heads,
                case_.head_dim,
                case_.causal,
                static_cast<float>(case_.scale)};
    return &problem_;
  }
  AttnForward forward() {
    return {.problem = *problem(),
            .q = tensor(qkv_, layouts_.q),
            .k = tensor(qkv_, layouts_.k),
            .v = tensor(qkv_, layouts_.v),
            .out = tensor(out_, layouts_.out),
            .lse = reinterpret_cast<float*>(lse_.data())};
  }
  AttnBackward backward(bool deterministic) {
    const AttnForward f = forward();
    return {.problem = f.problem,
            .q = f.q,
            .k = f.k,
            .v = f.v,
            .out = f.out,
            .dout = tensor(dout_, layouts_.out),
            .lse = f.lse,
            .dq = tensor(dqkv_, layouts_.q),
            .dk = tensor(dqkv_, layouts_.k),
            .dv = tensor(dqkv_, layouts_.v),
            .workspace = workspace_.data(),
            .workspace_bytes = workspace_.bytes(),
            .deterministic = deterministic};
  }

  // Forward and backward into poisoned outputs; returns the buffer of dq, dk and dv, for comparisons to the
  // bit.
  std::vector<uint8_t> run_for_bits(bool deterministic) {
    for (GuardedBuffer* buffer : {&out_, &lse_, &dqkv_, &workspace_}) buffer->poison();
    const AttnForward f = forward();
    const AttnBackward g = backward(deterministic);
    for (AttnStatus status : {attn_forward(&f, arch_, nullptr), attn_backward(&g, arch_, nullptr)}) {
      EXPECT_EQ(status, ATTN_OK) << attn_status_text(status);
    }
    cuda_ok(cudaDeviceSynchronize());
    return dqkv_.download();
  }

  Outputs run(bool deterministic) {
    Outputs r;
    std::vector<uint8_t> image = run_for_bits(deterministic);
    r.dq = elements_.take(image, layouts_.q);
    r.dk = elements_.take(image, layouts_.k);
    r.dv = elements_.take(image, layouts_.v);
    expect_untouched(image, "dq, dk, dv");
    image = out_.download();
    r.out = elements_.take(image, layouts_.out);
    expect_untouched(image, "out");
    image = lse_.download();
    r.lse.resize(case_.rows());
    std::memcpy(r.lse.data(), image.data(), image.size());
    workspace_.download();  // for its guards
    return r;
  }

 private:
  AttnTensor tensor(const GuardedBuffer& buffer, const Layout& l) const {
    return {buffer.data() + l.offset * elements_.size(), l.batch, l.row, l.head};
  }
  static void expect_untouched(const std::vector<uint8_t>& image, const char* what) {
    for (uint8_t byte : image) {
      if (byte != 0xff) {
        ADD_FAILURE() << what << ": a gap between rows was written";
        return;
      }
    }
  }

  AttentionCase case_;
  int arch_;
  Elements elements_;
  Layouts layouts_;
  AttnProblem problem_{};
  GuardedBuffer qkv_, dqkv_, out_, dout_, lse_, workspace_;
};

double largest(const std::vector<double>& x) {
  double most = 0;
  for (double value : x) most = std::fmax(most, std::abs(value));
  return most;
}

// The largest difference; NaN if there is one anywhere
template <class T>
double largest_difference(const std::vector<T>& x, const std::vector<double>& y) {
  double most = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double difference = std::abs(static_cast<double>(x[i]) - y[i]);
    if (!(difference <= most)) most = difference;
    if (std::isnan(most)) break;
  }
  return most;
}

// Where a query gives nearly all its weight to one key, dS = P (dP - delta) is what is left of two equal
// terms, and what rounding O for delta does to it is relative to those: a row of dQ or dK, of terms about as
// large as this.
double cancelled_terms(const AttentionCase& c, const Inputs& inputs) {
  return c.scale * std::sqrt(c.head_dim) * std::fmax(largest(inputs.q), largest(inputs.k));
}

struct Limits {
  double out, gradient, lse = tolerance::kLogSumExp;
};
Limits limits(bool bf16) {
  return bf16 ? Limits{tolerance::kBf16Out, tolerance::kBf16Gradient}
              : Limits{tolerance::kF32Out, tolerance::kF32Gradient};
}

// Prints the errors, so that a run with --gtest_filter also measures. dQ and dK count as at least `floor`
// large.
void expect_close(const AttentionCase& c, const Outputs& r, const AttentionReference& want,
                  const Limits& limit, double floor = 0) {
  const auto error = [](const std::vector<double>& x, const std::vector<double>& y, double least) {
    return largest_difference(x, y) / std::fmax(largest(y), least);
  };
  double most_lse = 1;
  for (double x : want.lse) most_lse = std::fmax(most_lse, std::abs(x));
  const double out = error(r.out, want.out, 0), lse = largest_difference(r.lse, want.lse) / most_lse;
  const double dq = error(r.dq, want.dq, floor), dk = error(r.dk, want.dk, floor),
               dv = error(r.dv, want.dv, 0);
  EXPECT_LE(out, limit.out);
  EXPECT_LE(lse, limit.lse);
  EXPECT_LE(dq, limit.gradient);
  EXPECT_LE(dk, limit.gradient);
  EXPECT_LE(dv, limit.gradient);
  std::printf("D %3d N %4d %s: error of out %.1e, lse %.1e, dq %.1e, dk %.1e, dv %.1e\n", c.head_dim,
              static_cast<int>(c.tokens), c.causal ? "causal" : "full  ", out, lse, dq, dk, dv);
}

class AttentionKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_arch() < 80) GTEST_SKIP() << "needs a CUDA device of compute capability 8.0 or higher";
  }
};

// ---- every size, both layouts, both modes, against the reference ----

struct Family {
  bool bf16;
  int head_dim;
  bool causal;
};
// For the lists of tests; without it GoogleTest prints the bytes, padding included.
void PrintTo(const Family& family, std::ostream* out) {
  *out << (family.bf16 ? "bf16" : "fp32") << ", head dim " << family.head_dim
       << (family.causal ? ", causal" : ", full");
}
class AttentionSizes : public AttentionKernels, public ::testing::WithParamInterface<Family> {};

void expect_agreement(const Family& family, int64_t batch, int64_t heads, int64_t tokens, int arch) {
  SCOPED_TRACE(::testing::Message() << "N = " << tokens);
  const AttentionCase c = {batch,           tokens,        heads,
                           family.head_dim, family.causal, 1 / std::sqrt(family.head_dim)};
  const Inputs inputs(c, family.bf16);
  const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
  for (Packing packing : {Packing::kPackedQkv, Packing::kSeparate}) {
    Problem problem(c, family.bf16, packing, inputs, arch);
    for (bool deterministic : {true, false}) {
      SCOPED_TRACE(::testing::Message() << (packing == Packing::kPackedQkv ? "packed" : "separate")
                                        << (deterministic ? ", fixed order" : ", any order"));
      expect_close(c, problem.run(deterministic), want, limits(family.bf16),
                   tokens == 1 ? cancelled_terms(c, inputs) : 0);
    }
  }
}

TEST_P(AttentionSizes, SmallAgreeWithFp64) {
  for (int64_t tokens : {1, 2, 15, 63, 64, 65, 113, 127, 128, 129, 203, 256}) {
    expect_agreement(GetParam(), 3, 1 + tokens % 3, tokens, device_arch());
  }
}
TEST_P(AttentionSizes, LargeAgreeWithFp64) {
  for (int64_t tokens : {511, 1000, 1024, 2047}) expect_agreement(GetParam(), 1, 2, tokens, device_arch());
}
// Kernels for chips with less shared memory run on those with more, too.
TEST_P(AttentionSizes, AgreeWithFp64In99KB) {
  for (int64_t tokens : {1, 31, 65, 128, 203, 700}) expect_agreement(GetParam(), 2, 2, tokens, 86);
}

std::vector<Family> families() {
  std::vector<Family> all;
  for (bool causal : {true, false}) {
    for (int head_dim : {64, 128}) all.push_back({true, head_dim, causal});
    for (int head_dim : {16, 32, 64, 128}) all.push_back({false, head_dim, causal});
  }
  return all;
}
std::string family_name(const ::testing::TestParamInfo<Family>& info) {
  const Family& f = info.param;
  return std::string(f.bf16 ? "Bf16" : "F32") + (f.causal ? "Causal" : "Full") + std::to_string(f.head_dim);
}
INSTANTIATE_TEST_SUITE_P(AttentionKernels, AttentionSizes, ::testing::ValuesIn(families()), family_name);

// ---- the same bits; both orders agree ----

TEST_F(AttentionKernels, FixedOrderGivesTheSameBits) {
  for (int head_dim : {64, 128}) {
    for (bool causal : {true, false}) {
      const AttentionCase c = {2, 1000, 20, head_dim, causal, 0.1};  // more CTAs than fit at a time
      const Inputs inputs(c, true);
      Problem problem(c, true, Packing::kPackedQkv, inputs);
      const std::vector<uint8_t> bits = problem.run_for_bits(true);
      for (int repeat = 1; repeat < 20; ++repeat) {
        ASSERT_TRUE(problem.run_for_bits(true) == bits) << "run " << repeat;
      }
      const Outputs first = problem.run(true);
      const Outputs other = problem.run(false);
      EXPECT_LE(largest_difference(other.dq, first.dq) / largest(first.dq), tolerance::kBf16AnotherOrder);
      EXPECT_EQ(other.dk, first.dk);
      EXPECT_EQ(other.dv, first.dv);
    }
  }
}

// ---- extreme values ----

TEST_F(AttentionKernels, ScoresOfTenThousand) {
  for (const Family& family : families()) {
    if (family.head_dim < 64) continue;
    const AttentionCase c = {1, 203, 2, family.head_dim, family.causal, 1};
    const Inputs inputs(c, family.bf16, 20);  // q k^T: standard deviation 20 20 sqrt(D), 3,200 or 4,500
    const AttentionReference want = reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout);
    ASSERT_GT(largest(want.lse), 1e4);
    // A score carries 1e4 2^-24 a few times over, and P thus some 1e-3.
    Limits limit = limits(family.bf16);
    limit.out = std::fmax(limit.out, 4e-3);
    limit.gradient = std::fmax(limit.gradient, 4e-3);
    for (bool deterministic : {true, false}) {
      expect_close(c, Problem(c, family.bf16, Packing::kPackedQkv, inputs).run(deterministic), want, limit,
                   cancelled_terms(c, inputs));
    }
  }
}

TEST_F(AttentionKernels, NanStaysNan) {
  for (bool bf16 : {true, false}) {
    for (bool causal : {true, false}) {
      const AttentionCase c = {1, 300, 2, 64, causal, 0.125};
      Inputs inputs(c, bf16);
      inputs.q[0] = NAN;                       // head 0, token 0
      inputs.k[(300 + 5) * c.head_dim] = NAN;  // head 1, token 5
      for (bool deterministic : {true, false}) {
        const Outputs r = Problem(c, bf16, Packing::kPackedQkv, inputs).run(deterministic);
        EXPECT_TRUE(std::isnan(r.out[0]));
        EXPECT_TRUE(std::isnan(r.lse[0]));
        EXPECT_TRUE(std::isnan(r.dq[0]));
        EXPECT_TRUE(std::isnan(r.dv[0]));
        EXPECT_FALSE(std::isnan(r.out[1 * c.head_dim])) << "row 1 does not read q of row 0";
        EXPECT_TRUE(std::isnan(r.out[(300 + 5) * c.head_dim]));
        EXPECT_TRUE(std::isnan(r.out[(300 + 299) * c.head_dim]));
        EXPECT_EQ(std::isnan(r.out[(300 + 4) * c.head_dim]), !causal)
            << "row 4 sees key 5 only without a mask";
      }
    }
  }
}

// ---- refusals ----

class AttentionRefusals : public AttentionKernels {
 protected:
  AttentionCase case_ = {1, 64, 2, 64, true, 0.125};
  Inputs inputs_{case_, true};
};

TEST_F(AttentionRefusals, NameTheCause) {
  Problem problem(case_, true, Packing::kPackedQkv, inputs_);
  const int arch = device_arch();
  const auto forward = [&](auto&& change) {
    AttnForward f = problem.forward();
    change(f);
    return attn_forward(&f, arch, nullptr);
  };
  const auto backward = [&](auto&& change) {
    AttnBackward f = problem.backward(true);
    change(f);
    return attn_backward(&f, arch, nullptr);
  };
  EXPECT_EQ(forward([](AttnForward& f) { f.problem.head_dim = 48; }), ATTN_BAD_HEAD_DIM);
  EXPECT_EQ(forward([](AttnForward& f) { f.problem.head_dim = 32; }), ATTN_BAD_HEAD_DIM) << "bf16";
  EXPECT_EQ(forward([](AttnForward& f) { f.problem.tokens = 0; }), ATTN_BAD_SHAPE);
  EXPECT_EQ(forward([](AttnForward& f) { f.problem.batch = int64_t{1} << 40; }), ATTN_BAD_SHAPE);
  EXPECT_EQ(forward([](AttnForward& f) { f.problem.scale = NAN; }), ATTN_BAD_SHAPE);
  EXPECT_EQ(forward([](AttnForward& f) { f.q.data = static_cast<uint8_t*>(f.q.data) + 8; }),
            ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(forward([](AttnForward& f) { f.out.row += 4; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(forward([](AttnForward& f) { f.lse = nullptr; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([](AttnBackward& f) { f.dk.head += 1; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([](AttnBackward& f) { f.workspace = nullptr; }), ATTN_NO_WORKSPACE);
  EXPECT_EQ(backward([](AttnBackward& f) { --f.workspace_bytes; }), ATTN_NO_WORKSPACE);
  const AttnForward f = problem.forward();
  EXPECT_EQ(attn_forward(&f, 75, nullptr), ATTN_BAD_ARCH);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace tessera::test

// One attention problem on the device: its buffers, its calls, and how far its results lie from a reference.
#pragma once

#include <cstdio>

#include "kernels/attention/choose.h"
#include "tests/attn_mask.h"
#include "tests/cuda/attention_fixture.h"
#include "tests/random_blocks.h"
#include "tests/tolerances.h"

namespace tessera::test {

namespace tolerance = tessera::tolerance::attention;

struct Inputs {
  std::vector<double> q, k, v, dout;

  Inputs(const AttentionCase& c, bool bf16, double size = 1)
      : q(random_values(c.rows() * c.head_dim, 1, size, bf16)),
        k(random_values(c.kv_rows() * c.head_dim, 2, size, bf16)),
        v(random_values(c.kv_rows() * c.head_dim, 3, 1, bf16)),
        dout(random_values(c.rows() * c.head_dim, 4, 1, bf16)) {}
};

struct Outputs {
  std::vector<double> out, dq, dk, dv;
  std::vector<float> lse;
  std::vector<double> dsinks = {};
};

// Inputs and outputs on the device; run() may be called again and again.
class Problem {
 public:
  Problem(const AttentionCase& c, bool bf16, Packing packing, const Inputs& inputs, int arch)
      : case_(c),
        arch_(arch),
        elements_{case_, bf16},
        layouts_(c, packing),
        qkv_image_(layouts_.qkv_elements * elements_.size(),
                   0xff),  // gaps stay NaN: nothing may be read there
        dout_image_(layouts_.out_elements * elements_.size(), 0xff),
        qkv_(qkv_image_.size()),
        dqkv_(qkv_image_.size()),
        out_(dout_image_.size()),
        dout_(dout_image_.size()),
        lse_(c.rows() * sizeof(float)),
        documents_(c.mask.documents.size() * sizeof(int32_t)),
        seen_by_(c.mask.seen_by.size() * sizeof(int32_t)),
        query_tokens_(c.mask.query_tokens.size() * sizeof(int32_t)),
        lists_(lists_of(c)),
        blocks_(lists_.numbers.size() * sizeof(int32_t)),
        sinks_(c.sinks.size() * elements_.size()),
        dsinks_(sinks_.bytes()),
        workspace_(workspace_bytes()) {
    upload(documents_, c.mask.documents);
    upload(seen_by_, c.mask.seen_by);
    upload(query_tokens_, c.mask.query_tokens);
    upload(blocks_, lists_.numbers);
    sinks_.upload(elements_.packed(c.sinks));
    elements_.put(qkv_image_, layouts_.q, inputs.q);
    elements_.put(qkv_image_, layouts_.k, inputs.k);
    elements_.put(qkv_image_, layouts_.v, inputs.v);
    qkv_.upload(qkv_image_);
    elements_.put(dout_image_, layouts_.out, inputs.dout);
    dout_.upload(dout_image_);
  }

  AttnProblem problem() const {
    AttnMask mask = attn_mask(case_.mask.causal, case_.mask.offset, case_.mask.window, table(documents_));
    mask.seen_by = table(seen_by_), mask.query_tokens = table(query_tokens_);
    mask.blocks = lists_.shape.at(table(blocks_));
    mask.choice = {.size = static_cast<int>(case_.choice.size), .count = static_cast<int>(case_.choice.count)};
    return {.struct_size = sizeof(AttnProblem),
            .dtype = elements_.bf16 ? ATTN_BF16 : ATTN_F32,
            .batch = case_.batch,
            .tokens = case_.tokens,
            .kv_tokens = case_.kv_tokens,
            .heads = case_.heads,
            .kv_heads = case_.kv_heads,
            .head_dim = case_.head_dim,
            .mask = mask,
            .scale = static_cast<float>(case_.scale),
            .dropout = attn_dropout(case_.dropout),
            .sinks = !case_.sinks.empty(),
            .alibi_heads = static_cast<int>(case_.alibi_heads),
            .first_head = static_cast<int>(case_.first_head),
            .score_cap = static_cast<float>(case_.cap),
            .fp8 = case_.fp8};
  }
  AttnForward forward() const {
    return {.q = tensor(qkv_, layouts_.q),
            .k = tensor(qkv_, layouts_.k),
            .v = tensor(qkv_, layouts_.v),
            .out = tensor(out_, layouts_.out),
            .lse = reinterpret_cast<float*>(lse_.data()),
            .workspace = workspace_.data(),
            .workspace_bytes = workspace_.bytes(),
            .sinks = pointer(sinks_),
            .problem = problem()};
  }
  AttnBackward backward() const {
    const AttnForward f = forward();
    return {.q = f.q,
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
            .deterministic = 1,
            .sinks = f.sinks,
            .dsinks = pointer(dsinks_),
            .problem = f.problem};
  }

  virtual ~Problem() = default;
  // Enqueues forward and backward. Tests of kernels that attn_forward() does not choose call those instead.
  virtual void enqueue(cudaStream_t stream) const {
    const AttnForward f = forward();
    const AttnBackward g = backward();
    for (AttnStatus status : {attn_forward(&f, arch_, stream), attn_backward(&g, arch_, stream)}) {
      EXPECT_EQ(status, ATTN_OK) << attn_status_text(status);
    }
  }
  void poison_outputs() {
    for (GuardedBuffer* buffer : {&out_, &lse_, &dqkv_, &dsinks_, &workspace_}) buffer->poison();
  }
  // All that the calls write but the workspace, for comparisons to the bit
  std::vector<uint8_t> bits() const {
    cuda_ok(cudaDeviceSynchronize());
    std::vector<uint8_t> all;
    for (const GuardedBuffer* buffer : {&out_, &lse_, &dqkv_, &dsinks_}) {
      const std::vector<uint8_t> part = buffer->download();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::vector<uint8_t> run_for_bits() {
    poison_outputs();
    enqueue(nullptr);
    return bits();
  }

  Outputs run() {
    poison_outputs();
    enqueue(nullptr);
    cuda_ok(cudaDeviceSynchronize());
    Outputs r;
    std::vector<uint8_t> image = dqkv_.download();
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
    r.dsinks = elements_.unpacked(dsinks_.download());
    workspace_.download();  // for its guards
    EXPECT_TRUE(qkv_.download() == qkv_image_) << "an input was written";
    EXPECT_TRUE(dout_.download() == dout_image_) << "dout was written";
    return r;
  }

 private:
  struct Lists {  // none: of size 0
    BlockShape shape = {};
    std::vector<int32_t> numbers = {};
  };
  static Lists lists_of(const AttentionCase& c) {
    if (c.blocks.size == 0) return {};
    const BlockLists lists = test::lists_of(c.blocks, c.mask.offset + c.tokens, c.kv_tokens);
    return {lists.shape(), lists.numbers()};
  }
  static void upload(GuardedBuffer& to, const std::vector<int32_t>& numbers) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(numbers.data());
    to.upload({bytes, bytes + to.bytes()});
  }
  static const int32_t* table(const GuardedBuffer& of) {
    return of.bytes() == 0 ? nullptr : reinterpret_cast<const int32_t*>(of.data());
  }
  static void* pointer(const GuardedBuffer& of) { return of.bytes() == 0 ? nullptr : of.data(); }
  size_t workspace_bytes() const {
    const AttnProblem p = problem();
    return std::max(attn_forward_workspace(&p, arch_), attn_backward_workspace(&p, arch_));
  }
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
  std::vector<uint8_t> qkv_image_, dout_image_;
  GuardedBuffer qkv_, dqkv_, out_, dout_, lse_, documents_, seen_by_, query_tokens_;
  Lists lists_;
  GuardedBuffer blocks_, sinks_, dsinks_, workspace_;
};

inline double largest(const std::vector<double>& x) {
  double most = 0;
  for (double value : x) most = std::fmax(most, std::abs(value));
  return most;
}

// The largest difference; NaN if there is one anywhere. Equal infinities do not differ.
template <class T>
double largest_difference(const std::vector<T>& x, const std::vector<double>& y) {
  double most = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double got = x[i], difference = got == y[i] ? 0 : std::abs(got - y[i]);
    if (!(difference <= most)) most = difference;
    if (std::isnan(most)) break;
  }
  return most;
}

// Where a query gives nearly all its weight to one key, dS = P (dP - delta) is what is left
// of two equal terms, and what rounding O for delta does to it is relative to those: a row of
// dQ or dK, of terms about as large as this.
inline double cancelled_terms(const AttentionCase& c, const Inputs& inputs) {
  return c.scale * std::sqrt(c.head_dim) * std::fmax(largest(inputs.q), largest(inputs.k)) *
         c.dropout.scale();
}

// Relative to the largest element of each tensor; LSE to the largest finite one, or to 1
struct Errors {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0, dsinks = 0;

  void take(const Errors& other) {
    const auto worse = [](double& mine, double its) {
      if (!(its <= mine)) mine = its;  // NaN is the worst
    };
    worse(out, other.out), worse(lse, other.lse), worse(dq, other.dq), worse(dk, other.dk),
        worse(dv, other.dv), worse(dsinks, other.dsinks);
  }
};

// dQ and dK count as at least `floor` large.
inline Errors errors_of(const Outputs& r, const AttentionReference& want, double floor = 0) {
  const auto error = [](const std::vector<double>& x, const std::vector<double>& y, double least) {
    return largest_difference(x, y) / std::fmax(largest(y), std::fmax(least, 1e-30));
  };
  double most_lse = 1;
  for (double x : want.lse)
    if (std::isfinite(x)) most_lse = std::fmax(most_lse, std::abs(x));
  return {.out = error(r.out, want.out, 0),
          .lse = largest_difference(r.lse, want.lse) / most_lse,
          .dq = error(r.dq, want.dq, floor),
          .dk = error(r.dk, want.dk, floor),
          .dv = error(r.dv, want.dv, 0),
          .dsinks = r.dsinks.empty() ? 0 : error(r.dsinks, want.dsinks, largest(want.dsinks_terms))};
}

struct Limits {
  double out, gradient, lse = tolerance::kLogSumExp;
};
inline Limits limits(bool bf16) {
  return bf16 ? Limits{tolerance::kBf16Out, tolerance::kBf16Gradient}
              : Limits{tolerance::kF32Out, tolerance::kF32Gradient};
}

inline void expect_within(const Errors& e, const Limits& limit) {
  EXPECT_LE(e.out, limit.out);
  EXPECT_LE(e.lse, limit.lse);
  EXPECT_LE(e.dq, limit.gradient);
  EXPECT_LE(e.dk, limit.gradient);
  EXPECT_LE(e.dv, limit.gradient);
  EXPECT_LE(e.dsinks, limit.gradient);
}

// So that a run of the tests also measures
inline void print_worst(int arch, const Errors& e) {
  std::printf("worst errors, kernels for arch %d: out %.1e, lse %.1e, dq %.1e, dk %.1e, dv %.1e\n", arch,
              e.out, e.lse, e.dq, e.dk, e.dv);
}

class AttentionKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_arch() < 80) GTEST_SKIP() << "needs a CUDA device of compute capability 8.0 or higher";
  }
};

}  // namespace tessera::test

// CPU attention where several query heads share a head of keys and values (Ainslie et al., "GQA",
// arXiv:2305.13245), and where q, k and v are heads of any tensors: naive and flash against fp64, to the bit
// where the sums are the same ones.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/attention_reference.h"
#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

constexpr AttentionKind kKinds[] = {AttentionKind::kNaive, AttentionKind::kFlash};

AttentionPlan plan_for(AttentionKind kind, AttentionShape shape, int threads = 3) {
  return choose_attention(
      {.kind = kind, .shape = shape, .dtype = DType::kF32, .device = {.threads = threads}});
}

struct Inputs {
  Heads q, k, v;
  Tensor dy;
};
struct Result {
  Tensor y, saved;
  Heads dq, dk, dv;
};

// Elements [B, heads, T, D], in the order of attention_reference.h
std::vector<float> values_of(const Heads& heads) {
  const Shape& s = heads.tensor.shape;
  std::vector<float> values;
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t h = 0; h < heads.count; ++h) {
      const View<float> head = heads_of<float>(heads).one_head(b, h);
      for (int64_t t = 0; t < s[1]; ++t)
        values.insert(values.end(), head.row_begin(t), head.row_begin(t) + s[3]);
    }
  return values;
}
std::vector<float> values_of(const Tensor& t) { return values_of(Heads{t, 0, t.shape[2]}); }
std::vector<double> doubles_of(const std::vector<float>& values) { return {values.begin(), values.end()}; }

void copy_heads(const Heads& from, const Heads& to) {
  const Shape& s = from.tensor.shape;
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t h = 0; h < to.count; ++h) {
      const View<float> source = heads_of<float>(from).one_head(b, h * from.count / to.count),
                        target = heads_of<float>(to).one_head(b, h);
      for (int64_t t = 0; t < s[1]; ++t) std::copy_n(source.row_begin(t), s[3], target.row_begin(t));
    }
}

// The largest |got - want| over the largest |want|; NaN stays
double error_of(const std::vector<float>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(got[i] - want[i]);
    if (!(off <= worst)) worst = off;
    largest = std::max(largest, std::abs(want[i]));
    if (std::isnan(worst)) break;
  }
  return worst / largest;
}

struct GroupedAttention : ::testing::Test {
  HostTensors make;
  CpuStream cpu;

  Inputs packed_inputs(const AttentionShape& s) {
    const PackedHeads in(make.normal({s.batch, s.tokens, s.heads + 2 * s.kv_heads, s.head_dim}), s);
    return {in.q, in.k, in.v, make.normal({s.batch, s.tokens, s.heads, s.head_dim})};
  }
  Heads poisoned_heads(const AttentionShape& s, int64_t count) {
    return {make.poisoned({s.batch, s.tokens, count, s.head_dim}), 0, count};
  }
  // The same values in tensors of their own
  Inputs apart(const AttentionShape& s, const Inputs& in) {
    const Inputs own{poisoned_heads(s, s.heads), poisoned_heads(s, s.kv_heads), poisoned_heads(s, s.kv_heads),
                     in.dy};
    copy_heads(in.q, own.q), copy_heads(in.k, own.k), copy_heads(in.v, own.v);
    return own;
  }

  Result run(const AttentionPlan& plan, const Inputs& in) {
    const AttentionShape& s = plan.shape;
    const PackedHeads out(make.poisoned({s.batch, s.tokens, s.heads + 2 * s.kv_heads, s.head_dim}), s);
    const Result r{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), out.q, out.k, out.v};
    run(plan, in, r);
    return r;
  }
  void run(const AttentionPlan& plan, const Inputs& in, const Result& r) {
    const Tensor workspace =
        make.poisoned({std::max(plan.forward_workspace_bytes, plan.backward_workspace_bytes) / 4});
    cpu.run(AttentionForward{
        .plan = plan, .q = in.q, .k = in.k, .v = in.v, .y = r.y, .saved = r.saved, .workspace = workspace});
    cpu.run(backward(plan, in, r, workspace));
  }
  static AttentionBackward backward(const AttentionPlan& plan, const Inputs& in, const Result& r,
                                    const Tensor& workspace) {
    return {.plan = plan,
            .q = in.q,
            .k = in.k,
            .v = in.v,
            .y = r.y,
            .saved = r.saved,
            .dy = in.dy,
            .dq = r.dq,
            .dk = r.dk,
            .dv = r.dv,
            .workspace = workspace};
  }

  static void expect_same_bits(const Result& a, const Result& b) {
    EXPECT_EQ(values_of(a.y), values_of(b.y));
    EXPECT_EQ(std::memcmp(a.saved.data, b.saved.data, a.saved.bytes()), 0);
    EXPECT_EQ(values_of(a.dq), values_of(b.dq));
    EXPECT_EQ(values_of(a.dk), values_of(b.dk));
    EXPECT_EQ(values_of(a.dv), values_of(b.dv));
  }
};

struct HeadCounts {
  int64_t heads, kv_heads;
};
constexpr HeadCounts kCounts[] = {{1, 1}, {2, 1}, {4, 2}, {6, 3}, {32, 8}, {5, 5}};

TEST_F(GroupedAttention, MatchesFp64) {
  for (const auto& [H, K] : kCounts)
    for (const int64_t T : {1, 7, 65, 131})
      for (const int64_t D : {5, 16, 33})
        for (const bool causal : {true, false}) {
          if (H == 32 && T * D > 65 * 16) continue;  // the other counts leave nothing for these sizes to find
          const AttentionShape s{2, T, H, D, causal, K};
          const Inputs in = packed_inputs(s);
          const test::AttentionCase problem{.batch = 2,
                                            .tokens = T,
                                            .heads = H,
                                            .kv_heads = K,
                                            .head_dim = static_cast<int>(D),
                                            .causal = causal,
                                            .scale = 1 / std::sqrt(static_cast<double>(D))};
          const test::AttentionReference want =
              test::reference_attention(problem, doubles_of(values_of(in.q)), doubles_of(values_of(in.k)),
                                        doubles_of(values_of(in.v)), doubles_of(values_of(in.dy)));
          for (const AttentionKind kind : kKinds) {
            SCOPED_TRACE(fmt::format("{} H {} K {} T {} D {} {}", name_of(kind), H, K, T, D,
                                     causal ? "causal" : "full"));
            const Result r = run(plan_for(kind, s), in);
            EXPECT_LT(error_of(values_of(r.y), want.out), tolerance::kCpuAttention);
            EXPECT_LT(error_of(values_of(r.dv), want.dv), tolerance::kCpuAttention);
            if (T == 1) continue;  // one key: dQ and dK are 0 but for rounding
            EXPECT_LT(error_of(values_of(r.dq), want.dq), tolerance::kCpuAttention);
            EXPECT_LT(error_of(values_of(r.dk), want.dk), tolerance::kCpuAttention);
          }
        }
}

TEST_F(GroupedAttention, TensorsOfTheirOwnGiveTheBitsOfPackedOnes) {
  for (const AttentionKind kind : kKinds)
    for (const auto& [H, K] : kCounts) {
      SCOPED_TRACE(fmt::format("{} H {} K {}", name_of(kind), H, K));
      const AttentionShape s{2, 67, H, 9, true, K};
      const Inputs in = packed_inputs(s);
      const Result packed = run(plan_for(kind, s), in);
      const Result own{make.poisoned(in.dy.shape), make.poisoned(packed.saved.shape), poisoned_heads(s, H),
                       poisoned_heads(s, K), poisoned_heads(s, K)};
      run(plan_for(kind, s), apart(s, in), own);
      expect_same_bits(packed, own);
    }
}

// A head that is shared is a head that is repeated: the same products, and dK, dV summed.
TEST_F(GroupedAttention, EqualsRepeatedKeysAndValues) {
  for (const AttentionKind kind : kKinds)
    for (const auto& [H, K] : kCounts)
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(fmt::format("{} H {} K {} {}", name_of(kind), H, K, causal ? "causal" : "full"));
        const AttentionShape s{1, 70, H, 12, causal, K}, all{1, 70, H, 12, causal};
        const Inputs in = packed_inputs(s);
        const Inputs repeated{in.q, poisoned_heads(s, H), poisoned_heads(s, H), in.dy};
        copy_heads(in.k, repeated.k), copy_heads(in.v, repeated.v);
        const Result grouped = run(plan_for(kind, s), in), wide = run(plan_for(kind, all), repeated);
        EXPECT_EQ(values_of(grouped.y), values_of(wide.y));
        EXPECT_EQ(values_of(grouped.dq), values_of(wide.dq));
        const int64_t each = s.tokens * s.head_dim, group = H / K;
        for (const auto& [sum, parts] : {std::pair{grouped.dk, wide.dk}, {grouped.dv, wide.dv}}) {
          const std::vector<float> terms = values_of(parts);
          std::vector<double> want(static_cast<size_t>(K * each));
          for (int64_t i = 0; i < H * each; ++i)
            want[static_cast<size_t>(i / each / group * each + i % each)] += terms[static_cast<size_t>(i)];
          EXPECT_LT(error_of(values_of(sum), want), tolerance::kCpuAttention);
        }
      }
}

TEST_F(GroupedAttention, ThreadsDoNotChangeTheBits) {
  const AttentionShape s{2, 131, 6, 16, true, 3};
  const Inputs in = packed_inputs(s);
  const int before = omp_get_max_threads();
  for (const AttentionKind kind : kKinds) {
    const Result first = run(plan_for(kind, s, 1), in);
    for (const int threads : {2, 3, 8}) {
      SCOPED_TRACE(fmt::format("{} on {} threads", name_of(kind), threads));
      omp_set_num_threads(threads);  // naive asks OpenMP, flash its plan
      expect_same_bits(first, run(plan_for(kind, s, threads), in));
    }
    omp_set_num_threads(before);
  }
}

TEST_F(GroupedAttention, OtherHeadsOfATensorAreLeftAlone) {
  const AttentionShape s{2, 21, 4, 8, true, 2};
  const Inputs in = packed_inputs(s);
  for (const AttentionKind kind : kKinds) {
    const Tensor wide = make.poisoned({s.batch, s.tokens, 11, s.head_dim});
    const Heads dv{wide, 1, 2}, dq{wide, 4, 4}, dk{wide, 9, 2};
    const Result plain = run(plan_for(kind, s), in);
    const Result r{make.poisoned(in.dy.shape), make.poisoned(plain.saved.shape), dq, dk, dv};
    run(plan_for(kind, s), in, r);
    expect_same_bits(plain, r);
    for (const int64_t head : {0, 3, 8})
      for (const float value : values_of(Heads{wide, head, 1}))
        ASSERT_TRUE(std::isnan(value)) << name_of(kind) << ", head " << head;
  }
}

TEST_F(GroupedAttention, ThePlanTellsTheKernels) {
  const AttentionShape grouped{2, 16, 6, 64, true, 3}, plain{2, 16, 6, 64, true};
  EXPECT_EQ(plain.kv_heads, 6);
  EXPECT_EQ(attn_problem(plan_for(AttentionKind::kFlash, grouped)).kv_heads, 3);
  EXPECT_EQ(attn_problem(plan_for(AttentionKind::kFlash, plain)).kv_heads, 6);
  EXPECT_EQ(plan_for(AttentionKind::kNaive, grouped).saved_shape, (Shape{2, 6, 16, 16}));
  EXPECT_EQ(plan_for(AttentionKind::kFlash, grouped).saved_shape, (Shape{2, 6, 16}));
}

template <class Refused>
std::string message_of(const Refused& refused) {
  try {
    refused();
  } catch (const Error& error) {
    return error.what();
  }
  return "was not refused";
}

TEST_F(GroupedAttention, RefusesHeadsThatDoNotDivide) {
  for (const int64_t kv_heads : {-1, 0, 4, 7, 12}) {
    const std::string message =
        message_of([&] { plan_for(AttentionKind::kFlash, {1, 8, 6, 16, true, kv_heads}); });
    EXPECT_EQ(message,
              fmt::format("attention wants key/value heads that divide its 6 heads, found {}", kv_heads));
  }
}

TEST_F(GroupedAttention, RefusesHeadsThatAreNotThere) {
  const AttentionShape s{1, 8, 4, 16, true, 2};
  const AttentionPlan plan = plan_for(AttentionKind::kNaive, s);
  const Inputs good = packed_inputs(s);
  const Result r = run(plan, good);
  const Tensor workspace = make.poisoned({plan.backward_workspace_bytes / 4});
  const auto expect_words = [&](const AttentionBackward& op, const std::string& words) {
    const std::string message = message_of([&] { cpu.run(op); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  Inputs bad = good;
  bad.k.first = 7;
  expect_words(backward(plan, bad, r, workspace),
               "attention backward: k wants 2 heads of fp32 [1, 8, 8, 16] on cpu, found 2 from head 7 on");
  bad = good;
  bad.v.first = -1;
  expect_words(backward(plan, bad, r, workspace), "v wants 2 heads of");
  bad = good;
  bad.k.count = 4;  // as many as there are query heads
  expect_words(backward(plan, bad, r, workspace), "k wants 2 heads of");
  bad = good;
  bad.q = poisoned_heads({1, 8, 4, 12}, 4);
  expect_words(backward(plan, bad, r, workspace),
               "q wants fp32 [1, 8, heads, 16] on cpu, found fp32 [1, 8, 4, 12] on cpu");
  bad.q.tensor = make.poisoned({8, 4, 16});
  expect_words(backward(plan, bad, r, workspace), "q wants fp32 [1, 8, heads, 16] on cpu");
  Result shared = r;
  shared.dv.first = shared.dk.first + 1;
  expect_words(backward(plan, good, shared, workspace), "dk and dv want heads of their own");
}

}  // namespace
}  // namespace tessera::testing

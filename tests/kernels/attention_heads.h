// Attention on the CPU as tests call it: heads of packed or of separate tensors, forward and backward.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/attention_reference.h"
#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {

inline constexpr AttentionKind kKinds[] = {AttentionKind::kNaive, AttentionKind::kFlash};

inline AttentionPlan plan_for(AttentionKind kind, AttentionShape shape, int threads = 3,
                              bool dropout = false) {
  return choose_attention({.kind = kind,
                           .shape = shape,
                           .dtype = DType::kF32,
                           .device = {.threads = threads},
                           .dropout = dropout});
}

struct Inputs {
  Heads q, k, v;
  Tensor dy = {};
  MaskTables tables = {};
  test::BlockCase blocks = {};  // what tables.blocks says
};
struct Result {
  Tensor y, saved;
  Heads dq = {}, dk = {}, dv = {};
};

// Elements [B, heads, T, D], in the order of attention_reference.h
inline std::vector<float> values_of(const Heads& heads) {
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
inline std::vector<float> values_of(const Tensor& t) { return values_of(Heads{t, 0, t.shape[2]}); }
inline std::vector<double> doubles_of(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

inline void copy_heads(const Heads& from, const Heads& to) {
  const Shape& s = from.tensor.shape;
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t h = 0; h < to.count; ++h) {
      const View<float> source = heads_of<float>(from).one_head(b, h * from.count / to.count),
                        target = heads_of<float>(to).one_head(b, h);
      for (int64_t t = 0; t < s[1]; ++t) std::copy_n(source.row_begin(t), s[3], target.row_begin(t));
    }
}

inline test::MaskCase mask_case_of(const AttentionMask& mask, const Tensor& documents) {
  test::MaskCase same(mask.causal, mask.window, mask.offset);
  if (documents) same.documents.assign(documents.as<int32_t>(), documents.as<int32_t>() + documents.numel());
  return same;
}

// The same problem in fp64
inline test::AttentionReference reference_of(const AttentionShape& s, const Inputs& in,
                                             const Dropout& dropout = {}, int64_t first_head = 0,
                                             const Tensor& sinks = {}) {
  test::AttentionCase problem{.batch = s.batch,
                              .tokens = s.tokens,
                              .heads = s.heads,
                              .kv_heads = s.kv_heads,
                              .head_dim = static_cast<int>(s.head_dim),
                              .mask = mask_case_of(s.mask, in.tables.documents),
                              .scale = 1 / std::sqrt(static_cast<double>(s.head_dim)),
                              .dropout = dropout,
                              .kv_tokens = s.kv_tokens,
                              .alibi_heads = s.scores.alibi_heads,
                              .first_head = first_head,
                              .cap = s.scores.cap,
                              .blocks = in.blocks,
                              .choice = {.size = s.mask.choice.size, .count = s.mask.choice.count}};
  if (sinks) problem.sinks.assign(floats(sinks).begin(), floats(sinks).end());
  return test::reference_attention(problem, doubles_of(values_of(in.q)), doubles_of(values_of(in.k)),
                                   doubles_of(values_of(in.v)), doubles_of(values_of(in.dy)));
}

// The largest |got - want| over the largest |want|, or over `least` if that is larger; NaN stays
inline double error_of(const std::vector<float>& got, const std::vector<double>& want, double least = 1e-30) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0, largest = least;
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = std::abs(got[i] - want[i]);
    if (!(off <= worst)) worst = off;
    largest = std::max(largest, std::abs(want[i]));
    if (std::isnan(worst)) break;
  }
  return worst / largest;
}

struct AttentionHeads : ::testing::Test {
  HostTensors make;
  CpuStream cpu;

  Inputs packed_inputs(const AttentionShape& s) {
    const PackedHeads in(make.normal({s.batch, s.tokens, s.heads + 2 * s.kv_heads, s.head_dim}), s);
    return {in.q, in.k, in.v, make.normal({s.batch, s.tokens, s.heads, s.head_dim})};
  }
  // In tensors of their own: keys and values may be of another number of tokens.
  Inputs inputs_apart(const AttentionShape& s) {
    const auto normal = [&](int64_t tokens, int64_t count) {
      return Heads{make.normal({s.batch, tokens, count, s.head_dim}), 0, count};
    };
    return {normal(s.tokens, s.heads), normal(s.kv_tokens, s.kv_heads), normal(s.kv_tokens, s.kv_heads),
            make.normal({s.batch, s.tokens, s.heads, s.head_dim})};
  }
  Heads poisoned_heads(const AttentionShape& s, int64_t count) { return poisoned_heads(s, s.tokens, count); }
  Heads poisoned_heads(const AttentionShape& s, int64_t tokens, int64_t count) {
    return {make.poisoned({s.batch, tokens, count, s.head_dim}), 0, count};
  }
  // The same values in tensors of their own
  Inputs apart(const AttentionShape& s, const Inputs& in) {
    const Inputs own{poisoned_heads(s, s.heads),
                     poisoned_heads(s, s.kv_heads),
                     poisoned_heads(s, s.kv_heads),
                     in.dy,
                     in.tables,
                     in.blocks};
    copy_heads(in.q, own.q), copy_heads(in.k, own.k), copy_heads(in.v, own.v);
    return own;
  }

  Result run(const AttentionPlan& plan, const Inputs& in, const Dropout& dropout = {}) {
    const AttentionShape& s = plan.shape;
    const PackedHeads out(make.poisoned({s.batch, s.tokens, s.heads + 2 * s.kv_heads, s.head_dim}), s);
    const Result r{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), out.q, out.k, out.v};
    run(plan, in, r, dropout);
    return r;
  }
  // With gradients in tensors of their own
  Result run_apart(const AttentionPlan& plan, const Inputs& in, const Dropout& dropout = {}) {
    const AttentionShape& s = plan.shape;
    const Result r{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), poisoned_heads(s, s.heads),
                   poisoned_heads(s, s.kv_tokens, s.kv_heads), poisoned_heads(s, s.kv_tokens, s.kv_heads)};
    run(plan, in, r, dropout);
    return r;
  }
  void run(const AttentionPlan& plan, const Inputs& in, const Result& r, const Dropout& dropout = {}) {
    const Tensor workspace = workspace_of(plan);
    cpu.run(forward(plan, in, r, workspace, dropout));
    cpu.run(backward(plan, in, r, workspace, dropout));
  }
  Tensor workspace_of(const AttentionPlan& plan) {
    return make.poisoned({std::max(plan.forward_workspace_bytes, plan.backward_workspace_bytes) / 4});
  }
  static AttentionForward forward(const AttentionPlan& plan, const Inputs& in, const Result& r,
                                  const Tensor& workspace, const Dropout& dropout = {}) {
    return {.plan = plan,
            .q = in.q,
            .k = in.k,
            .v = in.v,
            .y = all_heads(r.y),
            .saved = r.saved,
            .workspace = workspace,
            .dropout = dropout,
            .tables = in.tables};
  }
  static AttentionBackward backward(const AttentionPlan& plan, const Inputs& in, const Result& r,
                                    const Tensor& workspace, const Dropout& dropout = {}) {
    return {.plan = plan,
            .q = in.q,
            .k = in.k,
            .v = in.v,
            .y = all_heads(r.y),
            .saved = r.saved,
            .dy = all_heads(in.dy),
            .dq = r.dq,
            .dk = r.dk,
            .dv = r.dv,
            .workspace = workspace,
            .dropout = dropout,
            .tables = in.tables};
  }

  void expect_gradients_by_differences(const AttentionPlan& plan, const Inputs& in) {
    const Result r = run_apart(plan, in);
    const Result scratch{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), {}, {}, {}};
    const Tensor workspace = workspace_of(plan);
    for (const auto& [x, gradient] : {std::pair{in.q, r.dq}, {in.k, r.dk}, {in.v, r.dv}})
      expect_gradient(x.tensor, gradient.tensor, [&] {
        cpu.run(forward(plan, in, scratch, workspace));
        return dot(scratch.y, in.dy);
      });
  }

  static void expect_same_bits(const Result& a, const Result& b) {
    EXPECT_EQ(values_of(a.y), values_of(b.y));
    EXPECT_EQ(std::memcmp(a.saved.data, b.saved.data, a.saved.bytes()), 0);
    EXPECT_EQ(values_of(a.dq), values_of(b.dq));
    EXPECT_EQ(values_of(a.dk), values_of(b.dk));
    EXPECT_EQ(values_of(a.dv), values_of(b.dv));
  }
};

template <class Refused>
std::string message_of(const Refused& refused) {
  try {
    refused();
  } catch (const Error& error) {
    return error.what();
  }
  return "was not refused";
}

}  // namespace tessera::testing

#include "kernels/attention_ops.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/op_checks.h"
#include "kernels/score_ops.h"

namespace tessera {
namespace {

// `count` heads of a tensor [B, tokens, heads, D] of a planned attention
struct HeadsField {
  const char* name;
  const Heads& heads;
  int64_t tokens, count;
};

void check_attention_heads(const char* op, const AttentionPlan& plan, Device device,
                           std::initializer_list<HeadsField> fields) {
  const AttentionShape& s = plan.shape;
  for (const HeadsField& f : fields) {
    const Tensor& t = f.heads.tensor;
    const bool fits = t.shape.rank() == 4 && t.shape == Shape{s.batch, f.tokens, t.shape[2], s.head_dim};
    if (!fits || t.dtype != plan.dtype || t.device != device)
      fail("{}: {} must be {} [{}, {}, heads, {}] on {}, found {}", op, f.name, name_of(plan.dtype), s.batch,
           f.tokens, s.head_dim, name_of(device), t.to_string());
    check_range(op, f.name, f.heads, f.count);
  }
}

void check_mask_tables(const char* op, const AttentionPlan& plan, Device device, const MaskTables& tables,
                       const Dropout& dropout) {
  const AttentionShape& s = plan.shape;
  const auto& [documents, seen_by, query_tokens, blocks] = tables;
  if (s.mask.has_tables()) {
    check_fields(op, device, {{"documents", documents, DType::kI32, {s.batch, s.tokens, 2}}});
  } else if (documents) {
    fail(
        "{}: documents needs a plan within documents (AttentionMask::documents), found {} and a plan of "
        "mask: {}",
        op, documents.to_string(), to_string(s.mask));
  }
  if (s.mask.dealt)
    check_fields(op, device,
                 {{"seen_by", seen_by, DType::kI32, {s.batch, s.kv_tokens, 2}},
                  {"query_tokens", query_tokens, DType::kI32, {s.batch, s.tokens}, !dropout}});
  check(s.mask.dealt || !(seen_by || query_tokens),
        "{}: seen_by and query_tokens need a plan of dealt queries, found a plan of mask: {}", op,
        to_string(s.mask));
  if (s.mask.blocks.size > 0) {
    check_fields(op, device, {{"blocks", blocks, DType::kI32, {s.mask.blocks.numbers()}}});
  } else {
    check(!blocks,
          "{}: blocks needs a plan of sparse blocks (AttentionMask::blocks), found {} and a plan of "
          "mask: {}",
          op, blocks.to_string(), to_string(s.mask));
  }
}

void check_attention_inputs(const char* op, const AttentionPlan& plan, Device device, const Heads& q,
                            const Heads& k, const Heads& v, const MaskTables& tables,
                            const Dropout& dropout) {
  const AttentionShape& s = plan.shape;
  check_attention_heads(
      op, plan, device,
      {{"q", q, s.tokens, s.heads}, {"k", k, s.kv_tokens, s.kv_heads}, {"v", v, s.kv_tokens, s.kv_heads}});
  check_mask_tables(op, plan, device, tables, dropout);
}

// What an operation reads that only looks at scores
void check_scores(const char* op, const AttentionPlan& plan, Device device, const Heads& q, const Heads& k,
                  const MaskTables& tables) {
  const AttentionShape& s = plan.shape;
  check_attention_heads(op, plan, device, {{"q", q, s.tokens, s.heads}, {"k", k, s.kv_tokens, s.kv_heads}});
  check_mask_tables(op, plan, device, tables, {});
}

void check_attention_dropout(const char* op, const AttentionPlan& plan, const Dropout& dropout) {
  check_threshold(op, dropout);
  check(!dropout || plan.dropout, "{}: dropout needs a plan with dropout: set AttentionRequest::dropout", op);
  const int64_t heads = plan.shape.heads, first = dropout.place % Dropout::kHeads;  // what head 0 counts as
  check(
      !dropout || first + heads <= Dropout::kHeads,
      "{}: dropout.place must have room for {} heads before the next multiple of {}, found {} with room for "
      "{}",
      op, heads, Dropout::kHeads, dropout.place, Dropout::kHeads - first);
}

// No element is written twice.
void check_written_apart(const char* op, std::initializer_list<HeadsField> written) {
  for (const HeadsField* a = written.begin(); a != written.end(); ++a)
    for (const HeadsField* b = a + 1; b != written.end(); ++b)
      check(
          !share_memory(a->heads, b->heads),
          "{}: {} and {} must have heads of their own, found {} from {} on and {} from {} on, of one tensor",
          op, a->name, b->name, a->heads.count, a->heads.first, b->heads.count, b->heads.first);
}

}  // namespace

void AttentionForward::check_on(Device device) const {
  const AttentionShape& s = plan.shape;
  check_attention_inputs(kName, plan, device, q, k, v, tables, dropout);
  check_attention_heads(kName, plan, device, {{"y", y, s.tokens, s.heads}});
  check_fields(kName, device, {{"saved", saved, plan.saved_dtype, plan.saved_shape}});
  check_scratch(kName, workspace, plan.forward_workspace_bytes, device);
  check_attention_dropout(kName, plan, dropout);
  check_sinks(kName, device, {"sinks", sinks, plan.dtype, {s.heads}}, s.scores.sinks);
}

void AttentionSample::check_on(Device device) const {
  check_scores(kName, plan, device, q, k, tables);
  check_fields(kName, device, {{"entropy", entropy, DType::kF32, {plan.shape.heads}}});
}

void LargestScores::check_on(Device device) const {
  check_scores(kName, plan, device, q, k, tables);
  check_fields(kName, device, {{"largest", largest, DType::kI32, {plan.shape.heads}}});
}

void AttentionBackward::check_on(Device device) const {
  const AttentionShape& s = plan.shape;
  check_attention_inputs(kName, plan, device, q, k, v, tables, dropout);
  check_attention_heads(kName, plan, device, {{"y", y, s.tokens, s.heads}, {"dy", dy, s.tokens, s.heads}});
  check_fields(kName, device, {{"saved", saved, plan.saved_dtype, plan.saved_shape}});
  const std::initializer_list<HeadsField> gradients = {{"dq", dq, s.tokens, s.heads},
                                                       {"dk", dk, s.kv_tokens, s.kv_heads},
                                                       {"dv", dv, s.kv_tokens, s.kv_heads}};
  check_attention_heads(kName, plan, device, gradients);
  check_written_apart(kName, gradients);
  check_scratch(kName, workspace, plan.backward_workspace_bytes, device);
  check_attention_dropout(kName, plan, dropout);
  check_sinks(kName, device, {"sinks", sinks, plan.dtype, {s.heads}}, s.scores.sinks);
  check_sinks(kName, device, {"dsinks", dsinks, plan.dtype, {s.heads}, true}, s.scores.sinks);
}

void MoveHeads::check_on(Device device) const {
  for (const auto& [name, heads] : {std::pair{"from", from}, std::pair{"to", to}}) {
    check_anchor(kName, name, heads.tensor, 4, device);
    check_range(kName, name, heads, to.count);
  }
  const Shape &given = from.tensor.shape, &made = to.tensor.shape;
  check(given[3] == made[3], "{}: from and to must have one head dim, found {} and {}", kName,
        from.tensor.to_string(), to.tensor.to_string());
  check(rows || given[0] * given[1] == made[0] * made[1],
        "{}: without rows, from and to must have as many, found {} and {}", kName, from.tensor.to_string(),
        to.tensor.to_string());
  check_fields(kName, device, {{"rows", rows, DType::kI32, {made[0] * made[1]}, true}});
}

}  // namespace tessera

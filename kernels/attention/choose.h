// choose_attention: which attention runs, decided once.
//
// The plan says what the caller must allocate (what is saved for the backward, the workspace)
// and carries the decision to the kernels; nobody else looks inside. A request that cannot be
// met is an Error that says which sizes can.
#pragma once

#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_kind.h"
#include "kernels/attention/block_lists.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/mixture.h"
#include "kernels/base/device_traits.h"
#include "kernels/base/dropout.h"
#include "kernels/base/tensor.h"
#include "kernels/base/view.h"

namespace tessera {

// Blocks of keys that queries choose: AttnChoice of attention.h
struct BlockChoice {
  int64_t size = 0;   // tokens of a block; 0: every block is seen
  int64_t count = 0;  // blocks that a query sees, its own among them
  explicit operator bool() const { return size > 0; }
  bool operator==(const BlockChoice&) const = default;
};

// Which keys a query sees: AttnMask of attention.h without the places of the documents, which each call gives
struct AttentionMask {
  bool causal;         // query i sees the keys 0 to i + offset
  bool documents;      // and of those only the keys of its document
  int64_t window = 0;  // and of those, if causal, only the last `window`; 0: all
  int64_t offset = 0;  // of a causal mask: the place of the first query among the keys
  // The queries are some tokens of a causal sequence, in their order, and the keys are all of its tokens.
  // Each call says which keys each query sees, in `documents`, and which queries see each key. These tables
  // already obey `causal` and `window`
  bool dealt = false;
  BlockShape blocks = {};   // sparse blocks: each call gives their lists
  BlockChoice choice = {};  // needs `causal`

  AttentionMask(bool is_causal = true, bool has_documents = false)
      : causal(is_causal), documents(has_documents) {}
  static AttentionMask of_dealt_queries() {
    AttentionMask mask;
    mask.dealt = true;
    return mask;
  }
  bool has_tables() const { return documents || dealt; }  // calls give `documents`
  bool operator==(const AttentionMask&) const = default;
};
std::string to_string(const AttentionMask& mask);  // "causal, window 128, within documents"

// The tables of a call, int32 on the device, if the mask has tables
struct MaskTables {
  Tensor documents = {};     // [B, T, 2]: the document of each token, or the keys that each dealt query sees
  Tensor seen_by = {};       // [B, kv_tokens, 2]: the dealt queries that see each key
  Tensor query_tokens = {};  // [B, T]: the token that each dealt query is; for dropout of probabilities and
                             // ALiBi
  Tensor blocks = {};        // [numbers]: the lists of sparse blocks, see BlockLists
};

// How a score is made from the product of a query and a key, in addition to its scale
struct AttentionScores {
  // The softmax of a row has one more score, which belongs to no key: a learned number for each head, which
  // calls give
  bool sinks = false;
  int64_t alibi_heads = 0;  // the heads of the model whose scores have the bias of alibi.h; 0: none have
  float cap = 0;            // c: a score s becomes c tanh(s / c); 0: it stays
  bool operator==(const AttentionScores&) const = default;
};

struct AttentionShape {
  int64_t batch = 0, tokens = 0, heads = 0, head_dim = 0;
  AttentionMask mask = {};
  int64_t kv_heads = heads;    // of keys and values; query head h reads head h / (heads / kv_heads)
  int64_t kv_tokens = tokens;  // of keys and values
  AttentionScores scores = {};

  int64_t group() const { return heads / kv_heads; }  // query heads that share a head of keys and values
};

// The heads of packed projections qkv [B, T, H + 2K, D]: those of the queries, the keys, the values.
struct PackedHeads {
  Heads q, k, v;
  PackedHeads(const Tensor& qkv, int64_t heads, int64_t kv_heads)
      : q{qkv, 0, heads}, k{qkv, heads, kv_heads}, v{qkv, heads + kv_heads, kv_heads} {}
  PackedHeads(const Tensor& qkv, const AttentionShape& s) : PackedHeads(qkv, s.heads, s.kv_heads) {}
};

struct AttentionPlan {
  AttentionKind kind = AttentionKind::kFlash;
  AttentionShape shape{};
  DType dtype = DType::kF32;  // of qkv, the output and their gradients
  float scale = 1;            // 1 / sqrt(head_dim)
  int64_t first_head = 0;     // the head of the model that is head 0, see Alibi
  bool deterministic = true;  // of the backward
  bool dropout = false;       // whether operations of this plan may drop probabilities
  int arch = 0;               // 0 on the CPU
  int threads = 1;            // of the CPU's flash attention: each has its own part of the workspace

  // flash, cudnn: log-sum-exp fp32 [B, H, T]; naive: probabilities [B, H, T, kv_tokens] in `dtype`
  DType saved_dtype = DType::kF32;
  Shape saved_shape = {};
  const char* saved_name = "";  // for the memory report: "log-sum-exp", "probabilities"
  int64_t forward_workspace_bytes = 0, backward_workspace_bytes = 0;
  int64_t choice_bytes = 0;  // how many of the first bytes of both workspaces choice_of() has
};

struct AttentionRequest {
  AttentionKind kind;
  AttentionShape shape;
  DType dtype;
  DeviceTraits device;
  bool deterministic = true;
  bool dropout = false;  // of the probabilities, in training
};
AttentionPlan choose_attention(const AttentionRequest& request);

// The bytes of naive attention's matrices of one sequence, with which its workspace begins. In a backward
// they are followed by as many bytes for the scores, if there is a cap, and by a number in fp32 for each row
// of all sequences, if there are sinks.
int64_t naive_matrix_bytes(const AttentionPlan& plan);
inline int64_t naive_backward_bytes(const AttentionPlan& plan) {  // without the numbers for sinks
  return naive_matrix_bytes(plan) * (plan.shape.scores.cap > 0 ? 2 : 1);
}

inline AttnChoice attn_choice(const BlockChoice& choice) {
  return {.size = static_cast<int>(choice.size), .count = static_cast<int>(choice.count)};
}
AttnDtype attn_dtype(DType dtype);  // fails on a type that attention does not compute in
AttnDropout attn_dropout(const Dropout& dropout);
// The planned problem as attention.h describes it. `tables` is given if the plan's mask has tables.
AttnProblem attn_problem(const AttentionPlan& plan, const Dropout& dropout = {},
                         const MaskTables& tables = {});
// The planned mask of the first sequence, and the planned sparse blocks
attention::Mask mask_of(const AttentionPlan& plan, const MaskTables& tables);
attention::Blocks blocks_of(const AttentionPlan& plan, const MaskTables& tables);
// The buffers in which queries choose blocks, for the CPU and for naive attention. They are at the beginning
// of a call's workspace.
attention::ChoiceWorkspace choice_of(const AttentionPlan& plan, const Tensor& workspace);
// Tables for a plan, when there is no memory yet: if the plan's mask has tables, these are addresses that
// nothing reads.
MaskTables planned_tables(const AttentionPlan& plan);
AttnTensor attn_tensor(const Heads& heads);
AttnTensor attn_tensor(const Tensor& tensor);  // [B, T, heads, D], all heads

}  // namespace tessera

#include "model/attention.h"

#include "kernels/base/present.h"
#include "kernels/score_ops.h"

namespace tessera {
namespace {

// The heads of q and k in qkv, in what was rotated, or in their gradients: q before k in all of them
Heads heads_to_rotate(const ModelConfig& config, const Tensor& tensor) {
  return {tensor, 0, config.heads + config.kv_heads};
}

// q, k and v of the batch's tokens
PackedHeads heads_of(const Attention& a) {
  PackedHeads heads(a.saved.qkv, a.config.heads, a.config.kv_heads);
  if (a.saved.rotated) heads.q.tensor = heads.k.tensor = a.saved.rotated;
  return heads;
}

// All heads of some rows of [.., K, D], as those of one sequence
Heads heads_in_rows(const Tensor& keys, int64_t first, int64_t count) {
  const int64_t D = keys.shape[-1], K = keys.shape[-2];
  return {keys.view({keys.numel() / (K * D), K * D}).rows(first, count).view({1, count, K, D}), 0, K};
}

// Attention of some of the heads: part `index` of so many, in the order of the heads
struct AttentionPart {
  int64_t index, parts;

  Heads of(const Heads& heads) const { return part_of(heads, index, parts); }
  AttentionPlan plan(const Attention& a) const {
    AttentionPlan plan = a.plan;
    plan.first_head = a.plan.shape.scores.alibi_heads > 0 ? index * a.plan.shape.heads : 0;
    return plan;
  }
  Tensor row_state(const Attention& a) const {
    const Shape& shape = a.plan.saved_shape;
    const Tensor& all = a.saved.row_state;  // of blocks that share it, as large as one of them needs
    return all.view({all.numel()}).rows(index * shape.numel(), shape.numel()).view(shape);
  }
  // One for each head of the part; none where there are none
  Tensor of_each_head(const Tensor& all) const {
    const int64_t heads = all ? all.shape[0] / parts : 0;
    return all ? all.rows(index * heads, heads) : Tensor{};
  }
  Dropout dropout(const Attention& a) const {
    Dropout dropout = a.dropout;
    if (dropout) dropout.place += static_cast<uint32_t>(index * a.plan.shape.heads);
    return dropout;
  }
};

bool norms_all_heads(const Attention& a) { return a.config.qk_norm == QkNorm::kAllHeads; }

// Queries or keys, whose heads are normed together
struct NormedHeads {
  int64_t first, count;  // of those to rotate
  const Tensor &weight, &gradient;
  Tensor rstd;  // [N]

  Heads of(const Tensor& tensor) const { return {tensor, first, count}; }
};
template <class Visit>
void each_normed(const Attention& a, const AttentionWeights& gradients, const Visit& visit) {
  const int64_t H = a.config.heads, N = a.saved.head_rstd.shape[1];
  const auto rstd = [&](int64_t which) { return a.saved.head_rstd.rows(which, 1).view({N}); };
  visit(NormedHeads{0, H, a.weights.q_norm, gradients.q_norm, rstd(0)});
  visit(NormedHeads{H, a.config.kv_heads, a.weights.k_norm, gradients.k_norm, rstd(1)});
}

// Heads that are normed together are, from qkv to what is rotated, where each by itself is normed and rotated
// in one pass.
void norm_all_heads(const Stream& stream, const Attention& a) {
  if (!norms_all_heads(a)) return;
  each_normed(a, {}, [&](const NormedHeads& heads) {
    stream.run(HeadsNormForward{.x = heads.of(a.saved.qkv),
                                .y = heads.of(a.saved.rotated),
                                .weight = heads.weight,
                                .rstd = heads.rstd,
                                .epsilon = a.config.norm_epsilon,
                                .offset = a.config.norm_offset()});
  });
}

RotaryForward rotary_of(const Attention& a) {
  const AttentionSaved& s = a.saved;
  const Heads rotated = heads_to_rotate(a.config, s.rotated ? s.rotated : s.qkv);
  RotaryForward rotary{.x = norms_all_heads(a) ? rotated : heads_to_rotate(a.config, s.qkv),
                       .y = rotated,
                       .query_heads = a.config.heads,
                       .angles = a.angles,
                       .positions = a.positions,
                       .starts = a.starts};
  if (a.config.qk_norm == QkNorm::kHeads) {
    rotary.q_weight = a.weights.q_norm, rotary.k_weight = a.weights.k_norm, rotary.rstd = s.head_rstd;
    rotary.epsilon = a.config.norm_epsilon, rotary.offset = a.config.norm_offset();
  }
  return rotary;
}

CacheAppend append_of(const Attention& a) {
  const PackedHeads heads = heads_of(a);
  return {.k = heads.k,
          .v = heads.v,
          .starts = a.starts,
          .k_cache = a.cache.k,
          .v_cache = a.cache.v,
          .ring = a.cache.ring,
          .means = a.cache.means,
          .block = a.cache.block};
}

DecodeAttention decode_attention_of(const Attention& a) {
  DecodeAttention op{.plan = present(a.decode),
                     .q = heads_of(a).q,
                     .k_cache = a.cache.k,
                     .v_cache = a.cache.v,
                     .starts = a.starts,
                     .y = a.saved.output,
                     .workspace = a.workspace,
                     .sinks = a.weights.sinks,
                     .blocks = a.tables.blocks,
                     .means = a.cache.means,
                     .groups = a.cache.groups};
  const DecodeShape& shape = op.plan.shape;
  if (!shape.one_cache) return op;
  // [1, T, ..] as T sequences of one token
  const auto by_token = [&](const Tensor& heads) {
    return heads.view({shape.batch, 1, heads.shape[2], heads.shape[3]});
  };
  op.q.tensor = by_token(op.q.tensor), op.y = by_token(op.y);
  op.k_cache = heads_in_rows(a.cache.k, 0, shape.capacity).tensor;
  op.v_cache = heads_in_rows(a.cache.v, 0, shape.capacity).tensor;
  op.starts = a.decoded.places, op.workspace = a.decoded.workspace;
  return op;
}

void copy_rows(const Stream& stream, const Tensor& from, int64_t from_row, const Tensor& to, int64_t to_row,
               int64_t count) {
  stream.run(Copy{heads_in_rows(from, from_row, count).tensor, heads_in_rows(to, to_row, count).tensor});
}

// A prompt in a block with a small cache: the older tokens, of codes and of the ring, then its own go to
// a.unrolled; the groups that it completes become codes, and the newest tokens go to the ring.
void unroll_codes(const Stream& stream, const Attention& a) {
  const PackedHeads heads = heads_of(a);
  const CacheFormat& format = a.cache.format;
  const Shape& groups = a.cache.groups.shape;  // [1, K, G, words]
  const int64_t start = a.unrolled.start, T = a.plan.shape.tokens, end = start + T, rows = a.cache.rows();
  const int64_t old = CacheFormat::groups_of(start), all = CacheFormat::groups_of(end);
  stream.run(DequantiseCache{.format = format,
                             .groups = a.cache.groups.view({groups[1], groups[2], groups[3]}),
                             .count = old,
                             .k = a.unrolled.k,
                             .v = a.unrolled.v});
  const auto lay_out = [&](const Heads& own, const Tensor& ring, const Tensor& to) {
    const int64_t first = old * CacheFormat::kGroupTokens, kept = all * CacheFormat::kGroupTokens;
    for_each_run_of_ring(start, start - first, rows, [&](int64_t token, int64_t row, int64_t count) {
      copy_rows(stream, ring, row, to, first + token, count);
    });
    stream.run(MoveHeads{.from = own, .to = heads_in_rows(to, start, T)});
    for_each_run_of_ring(end, end - kept, rows, [&](int64_t token, int64_t row, int64_t count) {
      copy_rows(stream, to, kept + token, ring, row, count);
    });
  };
  lay_out(heads.k, a.cache.k, a.unrolled.k);
  lay_out(heads.v, a.cache.v, a.unrolled.v);
  const Shape& text = a.unrolled.k.shape;  // [rows, K, D]
  const auto as_layer = [&](const Tensor& one) { return one.view({1, 1, text[0], text[1], text[2]}); };
  stream.run(QuantiseCache{.format = format,
                           .k = as_layer(a.unrolled.k),
                           .v = as_layer(a.unrolled.v),
                           .groups = a.cache.groups.view({1, 1, groups[1], groups[2], groups[3]}),
                           .first = old,
                           .count = all - old});
}

// A prompt in a block whose cache is a ring: the older tokens that its own see, then these, to a.unrolled;
// and the last ones to the ring.
void unroll(const Stream& stream, const Attention& a) {
  const PackedHeads heads = heads_of(a);
  const int64_t start = a.unrolled.start;
  const int64_t T = a.plan.shape.tokens, older = a.plan.shape.kv_tokens - T, rows = a.cache.rows(),
                kept = std::min(T, rows);
  const auto lay_out = [&](const Heads& own, const Tensor& ring, const Tensor& to) {
    for_each_run_of_ring(start, older, rows, [&](int64_t token, int64_t row, int64_t count) {
      copy_rows(stream, ring, row, to, token, count);
    });
    stream.run(MoveHeads{.from = own, .to = heads_in_rows(to, older, T)});
    for_each_run_of_ring(start + T, kept, rows, [&](int64_t token, int64_t row, int64_t count) {
      copy_rows(stream, to, older + T - kept + token, ring, row, count);
    });
  };
  lay_out(heads.k, a.cache.k, a.unrolled.k);
  lay_out(heads.v, a.cache.v, a.unrolled.v);
}

}  // namespace

void place_heads(const Stream& stream, const Attention& a) {
  norm_all_heads(stream, a);
  if (a.cache.ring && !a.decode) {
    if (a.angles) stream.run(rotary_of(a));
    return a.cache.groups ? unroll_codes(stream, a) : unroll(stream, a);
  }
  if (a.angles && a.starts) return stream.run(RotaryAppend{rotary_of(a), append_of(a)});
  if (a.angles) stream.run(rotary_of(a));
  if (a.starts) stream.run(append_of(a));
}

void attend(const Stream& stream, const Attention& a) {
  if (a.decode) return stream.run(decode_attention_of(a));
  PackedHeads in = heads_of(a);
  if (a.starts) {
    in.k = heads_in_rows(a.cache.ring ? a.unrolled.k : a.cache.k, 0, a.plan.shape.kv_tokens);
    in.v = heads_in_rows(a.cache.ring ? a.unrolled.v : a.cache.v, 0, a.plan.shape.kv_tokens);
  }
  const int64_t parts = parts_of(a.config, a.plan);
  std::optional<GatheredKeys> gathered;
  if (a.context) gathered.emplace(stream, a.context, KeysAndValues{in.k, in.v}, parts);
  for (AttentionPart part{0, parts}; part.index < parts; ++part.index) {
    const KeysAndValues keys = gathered ? gathered->next() : KeysAndValues{part.of(in.k), part.of(in.v)};
    const AttentionPlan plan = part.plan(a);
    stream.run(AttentionForward{.plan = plan,
                                .q = part.of(in.q),
                                .k = keys.k,
                                .v = keys.v,
                                .y = part.of(all_heads(a.saved.output)),
                                .saved = part.row_state(a),
                                .workspace = a.workspace,
                                .dropout = part.dropout(a),
                                .tables = a.tables,
                                .sinks = part.of_each_head(a.weights.sinks)});
    if (a.entropies)
      stream.run(AttentionSample{.plan = plan,
                                 .q = part.of(in.q),
                                 .k = keys.k,
                                 .tables = a.tables,
                                 .entropy = part.of_each_head(a.entropies)});
    if (a.largest_scores)
      stream.run(LargestScores{.plan = plan,
                               .q = part.of(in.q),
                               .k = keys.k,
                               .tables = a.tables,
                               .largest = part.of_each_head(a.largest_scores)});
  }
}

void attend_backward(const Stream& stream, const Attention& a, const AttendBackward& backward) {
  const PackedHeads in = heads_of(a), d(backward.d_qkv, a.config.heads, a.config.kv_heads);
  const int64_t parts = parts_of(a.config, a.plan);
  std::optional<GatheredKeys> gathered;
  std::optional<KeyGradients> summed;
  if (a.context) {
    gathered.emplace(stream, a.context, KeysAndValues{in.k, in.v}, parts);
    summed.emplace(stream, a.context, backward.context, KeysAndValues{d.k, d.v}, parts);
  }
  for (AttentionPart part{0, parts}; part.index < parts; ++part.index) {
    const KeysAndValues keys = gathered ? gathered->next() : KeysAndValues{part.of(in.k), part.of(in.v)},
                        d_keys = summed ? summed->of_part() : KeysAndValues{part.of(d.k), part.of(d.v)};
    const AttentionPlan plan = part.plan(a);
    stream.run(AttentionBackward{.plan = plan,
                                 .q = part.of(in.q),
                                 .k = keys.k,
                                 .v = keys.v,
                                 .y = part.of(all_heads(a.saved.output)),
                                 .saved = part.row_state(a),
                                 .dy = part.of(all_heads(backward.d_output)),
                                 .dq = part.of(d.q),
                                 .dk = d_keys.k,
                                 .dv = d_keys.v,
                                 .workspace = backward.workspace,
                                 .dropout = part.dropout(a),
                                 .tables = a.tables,
                                 .sinks = part.of_each_head(a.weights.sinks),
                                 .dsinks = part.of_each_head(backward.gradients.sinks),
                                 .accumulate = backward.accumulate});
    if (summed) summed->sum();
  }
  if (summed) summed->finish();
}

void place_heads_backward(const Stream& stream, const Attention& a, const PlaceBackward& backward) {
  if (!a.angles) return;
  const Heads d_qk = heads_to_rotate(a.config, backward.d_qkv);
  RotaryBackward rotary{.dy = d_qk,
                        .dx = d_qk,
                        .query_heads = a.config.heads,
                        .angles = a.angles,
                        .positions = a.positions,
                        .accumulate = backward.accumulate};
  if (a.config.qk_norm == QkNorm::kHeads) {
    rotary.x = heads_to_rotate(a.config, a.saved.qkv), rotary.rstd = a.saved.head_rstd;
    rotary.q_weight = a.weights.q_norm, rotary.k_weight = a.weights.k_norm;
    rotary.offset = a.config.norm_offset();
    rotary.dq_weight = backward.gradients.q_norm, rotary.dk_weight = backward.gradients.k_norm;
  }
  stream.run(rotary);
  if (!norms_all_heads(a)) return;
  each_normed(a, backward.gradients, [&](const NormedHeads& heads) {
    stream.run(HeadsNormBackward{.dy = heads.of(backward.d_qkv),
                                 .x = heads.of(a.saved.qkv),
                                 .weight = heads.weight,
                                 .rstd = heads.rstd,
                                 .offset = a.config.norm_offset(),
                                 .dx = heads.of(backward.d_qkv),
                                 .dweight = heads.gradient,
                                 .accumulate = backward.accumulate});
  });
}

// Attention itself knows the other part, as long as nothing stands between its sums and the bias. A bias
// of the keys adds the same to all scores of a query, which the softmax does not see: its gradient is 0. The
// probabilities of a query add up to 1, so that a bias of the values arrives at the output whole: its
// gradient is the sum of the output's, and that is the gradient of W_O's bias times W_O.
Tensor qkv_bias_to_sum(const Stream& stream, const Attention& a, const AttentionWeights& gradients) {
  const Tensor &qkv = gradients.qkv.bias, &out = gradients.out.bias;
  const int64_t width = a.config.attention_width();
  if (!qkv || !out || !bias_gradient_reads_out(a.config)) return qkv;
  const Tensor of_values = qkv.rows(2 * width, width).view({1, width});
  stream.run(LinearBackward{
      .dy = out.view({1, out.shape[0]}), .x = of_values, .weight = a.weights.out.weight, .dx = of_values});
  return qkv.rows(0, width);
}

CachedAttention cached_attention(const Attention& a) {
  CachedAttention cached{
      .heads = a.saved.qkv, .rotary = {}, .append = append_of(a), .attention = decode_attention_of(a)};
  if (a.angles) cached.rotary = rotary_of(a);
  return cached;
}

}  // namespace tessera

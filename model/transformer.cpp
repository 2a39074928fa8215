#include "model/transformer.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

DType dtype_of(const Model& model) { return model.params.token_table.dtype; }

// The first half of a block: x and attention on it, to residual_mid.
void attention_half_forward(const Stream& stream, const Model& model, size_t layer, const Tensor& x,
                            const BlockSaved& s, const Tensor& attention_workspace) {
  const BlockParams& p = model.params.blocks[layer];
  stream.run(LayerNormForward{.x = x,
                              .weight = p.norm1_weight,
                              .bias = p.norm1_bias,
                              .y = s.norm1,
                              .mean = s.norm1_mean,
                              .rstd = s.norm1_rstd,
                              .epsilon = model.config.norm_epsilon});
  stream.run(LinearForward{.x = s.norm1,
                           .weight = p.qkv_weight,
                           .y = s.qkv.view({x.shape[0], 3 * x.shape[1]}),
                           .bias = p.qkv_bias});
  const PackedHeads in(s.qkv, model.plan.shape);
  stream.run(AttentionForward{.plan = model.plan_of(layer),
                              .q = in.q,
                              .k = in.k,
                              .v = in.v,
                              .y = s.attention,
                              .saved = s.attention_saved,
                              .workspace = attention_workspace});
  stream.run(LinearForward{.x = s.attention.view(x.shape),
                           .weight = p.out_weight,
                           .y = s.residual_mid,
                           .bias = p.out_bias,
                           .add = x});
}

// From residual_mid to the MLP's hidden layer
void mlp_hidden_forward(const Stream& stream, const Model& model, size_t layer, const BlockSaved& s) {
  const BlockParams& p = model.params.blocks[layer];
  stream.run(LayerNormForward{.x = s.residual_mid,
                              .weight = p.norm2_weight,
                              .bias = p.norm2_bias,
                              .y = s.norm2,
                              .mean = s.norm2_mean,
                              .rstd = s.norm2_rstd,
                              .epsilon = model.config.norm_epsilon});
  stream.run(LinearForward{.x = s.norm2,
                           .weight = p.expand_weight,
                           .y = s.hidden,
                           .bias = p.expand_bias,
                           .pre_activation = s.pre_activation,
                           .activation = model.config.mlp});
}

void block_forward(const Stream& stream, const Model& model, size_t layer, const Tensor& x,
                   const BlockSaved& s, const Tensor& attention_workspace) {
  attention_half_forward(stream, model, layer, x, s, attention_workspace);
  mlp_hidden_forward(stream, model, layer, s);
  const BlockParams& p = model.params.blocks[layer];
  stream.run(LinearForward{.x = s.hidden,
                           .weight = p.contract_weight,
                           .y = s.residual_out,
                           .bias = p.contract_bias,
                           .add = s.residual_mid});
}

// The forward's lines in reverse. `d` is the gradient of residual_out on entry, of the block's input x on
// return. An input of a linear layer that is not read again is overwritten by its gradient.
void block_backward(const Stream& stream, Arena& arena, const Model& model, size_t layer, const Tensor& x,
                    const BlockSaved& s, const Tensor& d, const BlockParams& g) {
  Arena::Scope scope(arena);
  const BlockParams& p = model.params.blocks[layer];
  const AttentionPlan plan = model.plan_of(layer);
  const int64_t N = x.shape[0], C = x.shape[1];
  const Tensor &d_hidden = s.hidden, &d_norm2 = s.norm2, &d_norm1 = s.norm1;
  stream.run(LinearBackward{.dy = d,
                            .x = s.hidden,
                            .weight = p.contract_weight,
                            .dx = d_hidden,
                            .dweight = g.contract_weight,
                            .dbias = g.contract_bias,
                            .pre_activation = s.pre_activation,
                            .activation = model.config.mlp});
  stream.run(LinearBackward{.dy = d_hidden,
                            .x = s.norm2,
                            .weight = p.expand_weight,
                            .dx = d_norm2,
                            .dweight = g.expand_weight,
                            .dbias = g.expand_bias});
  stream.run(LayerNormBackward{.dy = d_norm2,
                               .x = s.residual_mid,
                               .weight = p.norm2_weight,
                               .mean = s.norm2_mean,
                               .rstd = s.norm2_rstd,
                               .dx = d,
                               .dweight = g.norm2_weight,
                               .dbias = g.norm2_bias,
                               .add = d});

  const Tensor d_attention =
      arena.alloc(MemoryTag::kActivations, "gradient of attention's output", x.dtype, s.attention.shape);
  const Tensor d_qkv = arena.alloc(MemoryTag::kActivations, "gradient of qkv", x.dtype, s.qkv.shape);
  const Tensor workspace = arena.alloc(MemoryTag::kAttention, "attention backward scratch", DType::kF32,
                                       {(plan.backward_workspace_bytes + 3) / 4});
  stream.run(LinearBackward{.dy = d,
                            .x = s.attention.view({N, C}),
                            .weight = p.out_weight,
                            .dx = d_attention.view({N, C}),
                            .dweight = g.out_weight,
                            .dbias = g.out_bias});
  const PackedHeads in(s.qkv, plan.shape), out(d_qkv, plan.shape);
  stream.run(AttentionBackward{.plan = plan,
                               .q = in.q,
                               .k = in.k,
                               .v = in.v,
                               .y = s.attention,
                               .saved = s.attention_saved,
                               .dy = d_attention,
                               .dq = out.q,
                               .dk = out.k,
                               .dv = out.v,
                               .workspace = workspace});
  stream.run(LinearBackward{.dy = d_qkv.view({N, 3 * C}),
                            .x = s.norm1,
                            .weight = p.qkv_weight,
                            .dx = d_norm1,
                            .dweight = g.qkv_weight,
                            .dbias = g.qkv_bias});
  stream.run(LayerNormBackward{.dy = d_norm1,
                               .x = x,
                               .weight = p.norm1_weight,
                               .mean = s.norm1_mean,
                               .rstd = s.norm1_rstd,
                               .dx = d,
                               .dweight = g.norm1_weight,
                               .dbias = g.norm1_bias,
                               .add = d});
}

const Tensor& block_input(const Saved& saved, size_t layer) {
  return layer == 0 ? saved.embedded : saved.blocks[layer - 1].residual_out;
}

// Recomputes the tensors of a block that the forward did not keep.
void recompute(const Stream& stream, const Model& model, const Saved& saved, size_t layer) {
  const BlockSaved& s = saved.blocks[layer];
  if (model.keep == Keep::kOutputs)
    attention_half_forward(stream, model, layer, block_input(saved, layer), s, saved.attention_workspace);
  if (model.keep != Keep::kAll) mlp_hidden_forward(stream, model, layer, s);
}

// The head and the final norm: losses, and with `d` also the gradient of the last block's output. saved.norm
// is then overwritten by its gradient.
void head(const Stream& stream, Arena& arena, const Model& model, const Saved& saved, const Tensor& targets,
          const Tensor& losses, float gradient_scale, const Grads* grads, const Tensor& d) {
  const Params& p = model.params;
  const int64_t N = saved.norm.shape[0];
  {
    Arena::Scope scope(arena);
    const int64_t chunk = model.classifier_chunk > 0 ? std::min(model.classifier_chunk, N) : N;
    const Tensor all_logits =
        arena.alloc(MemoryTag::kActivations, "logits", dtype_of(model), {chunk, model.config.padded_vocab()});
    for (int64_t first = 0; first < N; first += chunk) {
      const int64_t rows = std::min(chunk, N - first);
      const Tensor logits = all_logits.rows(0, rows), norm = saved.norm.rows(first, rows);
      logits_forward(stream, model, norm, logits);
      stream.run(CrossEntropy{.logits = logits,
                              .targets = targets.view({N}).rows(first, rows),
                              .losses = losses.rows(first, rows),
                              .vocab_size = model.config.vocab_size,
                              .want_gradient = grads != nullptr,
                              .gradient_scale = gradient_scale});
      if (!grads) continue;
      stream.run(LinearBackward{
          .dy = logits, .x = norm, .weight = p.classifier(), .dx = norm, .dweight = grads->classifier()});
    }
  }
  if (!grads) return;
  stream.run(LayerNormBackward{.dy = saved.norm,
                               .x = block_input(saved, saved.blocks.size()),
                               .weight = p.norm_weight,
                               .mean = saved.norm_mean,
                               .rstd = saved.norm_rstd,
                               .dx = d,
                               .dweight = grads->norm_weight,
                               .dbias = grads->norm_bias});
}

}  // namespace

AttentionPlan Model::plan_of(size_t layer) const {
  AttentionPlan own = plan;
  if (!config.scale_attention) own.scale = 1;
  if (config.scale_attention_by_layer) own.scale /= static_cast<float>(layer + 1);
  return own;
}

Saved allocate_saved(Arena& arena, const ModelConfig& config, const AttentionPlan& plan, Keep keep) {
  const auto [B, T, H, D, causal, K] = plan.shape;
  const int64_t N = B * T, C = config.channels, F = config.mlp_width;
  const auto take = [&](const char* name, Shape shape, DType dtype, MemoryTag tag = MemoryTag::kActivations) {
    return arena.alloc(tag, name, dtype, shape);
  };
  const DType t = plan.dtype, f = DType::kF32;
  const auto take_attention_half = [&](BlockSaved& s) {
    s.norm1 = take("norm 1", {N, C}, t);
    s.norm1_mean = take("norm 1 mean", {N}, f);
    s.norm1_rstd = take("norm 1 rstd", {N}, f);
    s.qkv = take("qkv", {B, T, H + 2 * K, D}, t);
    s.attention = take("attention output", {B, T, H, D}, t);
    s.attention_saved = take(plan.saved_name, plan.saved_shape, plan.saved_dtype, MemoryTag::kAttention);
    s.residual_mid = take("residual after attention", {N, C}, t);
  };
  const auto take_mlp_hidden = [&](BlockSaved& s) {
    s.norm2 = take("norm 2", {N, C}, t);
    s.norm2_mean = take("norm 2 mean", {N}, f);
    s.norm2_rstd = take("norm 2 rstd", {N}, f);
    s.pre_activation = take("MLP pre-activation", {N, F}, t);
    s.hidden = take("MLP hidden layer", {N, F}, t);
  };
  const auto take_output = [&](BlockSaved& s) { s.residual_out = take("residual after MLP", {N, C}, t); };

  Saved saved;
  saved.embedded = take("embeddings", {N, C}, t);
  // A tensor is allocated for every block, or once for all blocks. residual_out may be shared because a
  // block reads its input, which is then the same tensor, before it writes residual_out.
  const bool keep_attention = keep == Keep::kAll || keep == Keep::kAllButMlp, keep_mlp = keep == Keep::kAll,
             keep_output = keep != Keep::kNothing;
  BlockSaved for_all;
  if (keep != Keep::kAll) {
    Arena::Phase phase(arena, "block");
    if (!keep_attention) take_attention_half(for_all);
    if (!keep_mlp) take_mlp_hidden(for_all);
    if (!keep_output) take_output(for_all);
  }
  saved.blocks.assign(static_cast<size_t>(config.layers), for_all);
  for (int64_t l = 0; keep_output && l < config.layers; ++l) {
    Arena::Phase phase(arena, "block", l);
    BlockSaved& s = saved.blocks[static_cast<size_t>(l)];
    if (keep_attention) take_attention_half(s);
    if (keep_mlp) take_mlp_hidden(s);
    take_output(s);
  }
  saved.norm = take("final norm", {N, C}, t);
  saved.norm_mean = take("final norm mean", {N}, f);
  saved.norm_rstd = take("final norm rstd", {N}, f);
  if (plan.forward_workspace_bytes > 0)
    saved.attention_workspace =
        take("attention forward scratch", {(plan.forward_workspace_bytes + 3) / 4}, f, MemoryTag::kAttention);
  return saved;
}

void forward(const Stream& stream, const Model& model, const Tensor& tokens, const Saved& saved,
             const OnLayer& before_layer) {
  const Params& p = model.params;
  const int64_t B = tokens.shape[0], T = tokens.shape[1];
  const auto before = [&](int64_t layer) {
    if (before_layer) before_layer(layer);
  };
  before(-1);
  stream.run(EmbeddingForward{.tokens = tokens,
                              .token_table = p.token_table,
                              .position_table = p.position_table,
                              .y = saved.embedded.view({B, T, model.config.channels})});
  for (size_t l = 0; l < saved.blocks.size(); ++l) {
    before(static_cast<int64_t>(l));
    block_forward(stream, model, l, block_input(saved, l), saved.blocks[l], saved.attention_workspace);
  }
  before(model.config.layers);
  stream.run(LayerNormForward{.x = block_input(saved, saved.blocks.size()),
                              .weight = p.norm_weight,
                              .bias = p.norm_bias,
                              .y = saved.norm,
                              .mean = saved.norm_mean,
                              .rstd = saved.norm_rstd,
                              .epsilon = model.config.norm_epsilon});
}

void logits_forward(const Stream& stream, const Model& model, const Tensor& rows, const Tensor& logits) {
  stream.run(LinearForward{.x = rows, .weight = model.params.classifier(), .y = logits});
}

void evaluate_batch(const Stream& stream, Arena& arena, const Model& model, const Batch& batch,
                    const Tensor& losses) {
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "forward");
  const Saved saved = allocate_saved(arena, model.config, model.plan, Keep::kNothing);
  forward(stream, model, batch.tokens, saved);
  phase.next("head");
  head(stream, arena, model, saved, batch.targets, losses, 0, nullptr, {});
}

void train_batch(const Stream& stream, Arena& arena, const Model& model, const Batch& batch,
                 float gradient_scale, const Tensor& losses, const Grads& grads, const LayerHooks& hooks) {
  Arena::Scope scope(arena);
  const auto done = [&](int64_t layer) {
    if (hooks.after_backward) hooks.after_backward(layer);
  };
  Arena::Phase phase(arena, "forward");
  const Saved saved = allocate_saved(arena, model.config, model.plan, model.keep);
  forward(stream, model, batch.tokens, saved, hooks.before_forward);

  phase.next("backward");
  const Tensor d = arena.alloc(MemoryTag::kActivations, "gradient of the residual stream", dtype_of(model),
                               saved.embedded.shape);
  {
    Arena::Phase head_phase(arena, "head");
    head(stream, arena, model, saved, batch.targets, losses, gradient_scale, &grads, d);
  }
  done(model.config.layers);
  for (int64_t l = model.config.layers - 1; l >= 0; --l) {
    Arena::Phase block_phase(arena, "block", l);
    // Shared tensors still hold the values of the last block.
    if (l < model.config.layers - 1) recompute(stream, model, saved, static_cast<size_t>(l));
    block_backward(stream, arena, model, static_cast<size_t>(l), block_input(saved, l), saved.blocks[l], d,
                   grads.blocks[l]);
    done(l);
  }
  const int64_t B = batch.tokens.shape[0], T = batch.tokens.shape[1];
  stream.run(EmbeddingBackward{.tokens = batch.tokens,
                               .dy = d.view({B, T, model.config.channels}),
                               .d_token_table = grads.token_table,
                               .d_position_table = grads.position_table});
  done(-1);
}

}  // namespace tessera

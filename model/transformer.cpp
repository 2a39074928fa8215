#include "model/transformer.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// What all blocks share, in a forward and in its backward
struct Pass {
  const Model& model;
  const ActiveDropout& dropout;
  const Batch& batch;
  bool accumulate = true;  // gradients; else they are overwritten

  AttentionSettings attention_of(size_t layer) const { return model.attention_of(layer, dropout, batch); }
};

DType dtype_of(const Model& model) { return model.params.token_table.dtype; }

// [N, C] as [B, T, C]
Tensor by_sequence(const Model& model, const Tensor& rows) {
  const AttentionShape& shape = model.plan.shape;
  return rows.view({shape.batch, shape.tokens, rows.shape[1]});
}

// y = dropout(x); nothing without dropout
void drop(const Stream& stream, const Model& model, const Dropout& dropout, const Tensor& x, const Tensor& y,
          const Tensor& add = {}) {
  if (!dropout) return;
  stream.run(ApplyDropout{.x = by_sequence(model, x),
                          .y = by_sequence(model, y),
                          .add = add ? by_sequence(model, add) : Tensor{},
                          .dropout = dropout});
}

// The x of a linear layer in FP8, which the stage `writer` writes for `product` where both of them run:
// `kept` has those that do not.
Fp8Output written_by(Stage writer, Stage product, Keep kept, const LinearWeights& layer, const Tensor& x) {
  return kept.keeps(writer) || kept.keeps(product) ? Fp8Output{} : layer.fp8.x_output(x);
}

// One stage of a block: Stage has them in their order, and all run but those of `kept`. A branch that is
// dropped adds to the residual stream after that, otherwise in its last product.
void run_stage(const Stream& stream, const Pass& pass, size_t layer, Stage stage, Keep kept, const Tensor& x,
               const BlockSaved& s, const Tensor& attention_workspace) {
  const BlockParams& p = pass.model.params.blocks[layer];
  const ModelConfig& config = pass.model.config;
  const Fp8Output qkv_x = written_by(Stage::kNorm1, Stage::kQkv, kept, p.attention.qkv, s.norm1.y),
                  expand_x = written_by(Stage::kNorm2, Stage::kExpand, kept, p.mlp.expand, s.norm2.y),
                  contract_x = written_by(activation_stage(config), Stage::kContract, kept, p.mlp.contract,
                                          s.mlp.hidden);
  switch (stage) {
    case Stage::kNorm1:
      return norm_forward(stream, config, p.norm1, x, s.norm1, qkv_x);
    case Stage::kQkv:
      return qkv_forward(stream, pass.attention_of(layer), p.attention, s.norm1.y, s.attention, qkv_x.y);
    case Stage::kAttention:
      return attention_forward(stream, pass.attention_of(layer), s.attention, attention_workspace);
    case Stage::kOut: {
      const Dropout own = pass.dropout.at(DropoutKind::kAttentionBranch, layer);
      out_forward(stream, config, p.attention, s.attention, own ? Tensor{} : x, s.residual_mid);
      return drop(stream, pass.model, own, s.residual_mid, s.residual_mid, x);
    }
    case Stage::kNorm2:
      return norm_forward(stream, config, p.norm2, s.residual_mid, s.norm2, expand_x);
    case Stage::kExpand:
      return expand_forward(stream, config, p.mlp, s.norm2.y, s.mlp, expand_x.y, contract_x);
    case Stage::kActivation:
      return activation_forward(stream, config, s.mlp, contract_x);
    case Stage::kContract: {
      const Dropout own = pass.dropout.at(DropoutKind::kMlpBranch, layer);
      contract_forward(stream, config, p.mlp, s.mlp, own ? Tensor{} : s.residual_mid, s.residual_out,
                       contract_x.y);
      return drop(stream, pass.model, own, s.residual_out, s.residual_out, s.residual_mid);
    }
  }
}

void block_forward(const Stream& stream, const Pass& pass, size_t layer, const Tensor& x, const BlockSaved& s,
                   const Tensor& attention_workspace) {
  for (const Stage stage : kStages)
    run_stage(stream, pass, layer, stage, Keep::nothing(), x, s, attention_workspace);
}

// The gradient of the residual stream after a block is also that of the bias of its MLP branch, and the norm
// that writes the one sums the other; not where a dropout stands between them.
Tensor bias_before(const Pass& pass, const Grads& grads, size_t next) {
  if (next == 0 || pass.dropout.at(DropoutKind::kMlpBranch, next - 1)) return {};
  return grads.blocks[next - 1].mlp.contract.bias;
}

// That gradient is also the dy of the branch's last product, for which the norm rounds it; not where a
// dropout stands between them, or where products of the branch's block run again first. They would overwrite
// the codes, as all layers share one place for them. The last block does not run again.
Fp8Output branch_before(const Pass& pass, size_t next, const Tensor& d) {
  if (next == 0 || pass.dropout.at(DropoutKind::kMlpBranch, next - 1)) return {};
  const Keep& keep = pass.model.keep;
  const bool runs_again = next < pass.model.params.blocks.size() &&
                          !(keep.keeps(Stage::kQkv) && keep.keeps(Stage::kOut) && keep.keeps(Stage::kExpand));
  return runs_again ? Fp8Output{} : pass.model.params.blocks[next - 1].mlp.contract.fp8.dy_output(d);
}

// The forward's stages in reverse. `d` is the gradient of residual_out on entry, of the block's input x on
// return. An input of a linear layer that is not read again is overwritten by its gradient.
//
// In FP8, layers share one place for the codes of x and dy. So an operation that writes codes is the last one
// to do so before the product that reads them.
void block_backward(const Stream& stream, Arena& arena, const Pass& pass, size_t layer, const Tensor& x,
                    const BlockSaved& s, const Tensor& d, const Grads& grads) {
  Arena::Scope scope(arena);
  const Model& model = pass.model;
  const BlockParams &p = model.params.blocks[layer], &g = grads.blocks[layer];
  const bool accumulate = pass.accumulate;
  const Dropout of_mlp = pass.dropout.at(DropoutKind::kMlpBranch, layer),
                of_attention = pass.dropout.at(DropoutKind::kAttentionBranch, layer);
  const Tensor branch =
      of_mlp ? arena.alloc(MemoryTag::kActivations, "gradient of a residual branch", d.dtype, d.shape) : d;
  drop(stream, model, of_mlp, d, branch);
  mlp_backward(stream, model.config, p.mlp, s.mlp, g.mlp,
               {.accumulate = accumulate, .branch_bias = static_cast<bool>(of_mlp)}, branch,
               branch_before(pass, layer + 1, d).y, s.norm2.y);
  const Fp8Output out_dy = of_attention ? Fp8Output{} : p.attention.out.fp8.dy_output(d);
  norm_backward(stream, model.config, p.norm2, s.residual_mid, s.norm2, g.norm2, d, d,
                of_attention ? Tensor{} : g.attention.out.bias, out_dy, accumulate);
  drop(stream, model, of_attention, d, branch);
  attention_backward(stream, arena, pass.attention_of(layer), p.attention, s.attention, g.attention,
                     {.accumulate = accumulate, .branch_bias = static_cast<bool>(of_attention)}, branch,
                     out_dy.y, s.norm1.y);
  norm_backward(stream, model.config, p.norm1, x, s.norm1, g.norm1, d, d, bias_before(pass, grads, layer),
                branch_before(pass, layer, d), accumulate);
}

const Tensor& block_input(const Saved& saved, size_t layer) {
  return layer == 0 ? saved.embedded : saved.blocks[layer - 1].residual_out;
}

// Runs the stages of a block again whose results the forward did not keep.
void recompute(const Stream& stream, const Pass& pass, const Saved& saved, size_t layer) {
  for (const Stage stage : kStages)
    if (!pass.model.keep.keeps(stage))
      run_stage(stream, pass, layer, stage, pass.model.keep, block_input(saved, layer), saved.blocks[layer],
                saved.attention_workspace);
}

// Rows whose logits are computed at a time
int64_t rows_of_logits(const Model& model, int64_t N) {
  return model.classifier_chunk > 0 ? std::min(model.classifier_chunk, N) : N;
}

// The x of the logits in FP8, written by the final norm; not where the gradient of some logits would
// overwrite the x of the next ones
Fp8Output logits_x(const Model& model, const Tensor& norm) {
  const int64_t N = norm.shape[0];
  return rows_of_logits(model, N) < N ? Fp8Output{} : model.params.head_fp8.x_output(norm);
}

void logits_of(const Stream& stream, const Model& model, const Tensor& rows, const Tensor& logits,
               const Fp8Matrix& fp8_x) {
  LinearForward product{.x = rows, .weight = model.params.classifier(), .y = logits, .fp8_x = fp8_x};
  quantise_factors(stream, model.params.head_fp8, product);
  stream.run(product);
}

// Losses of some rows x of the final norm, and the gradients of the head, that of x in its place. `scaled` is
// memory like x.
void fused_head(const Stream& stream, Arena& arena, const Pass& pass, const Tensor& x, const Tensor& e,
                const Tensor& scaled, const Tensor& targets, const Tensor& losses,
                const Tensor& gradient_scale, const Tensor& dweight, bool accumulate) {
  Arena::Scope scope(arena);
  const int64_t N = x.shape[0];
  const auto take = [&](const char* name, const Shape& shape) {
    return arena.alloc(MemoryTag::kActivations, name, DType::kF32, shape);
  };
  const int64_t parts = (e.shape[1] + HeadLoss::kSumColumns - 1) / HeadLoss::kSumColumns;
  const Tensor factors = take("factors of the loss", {2, N}), sums = take("sums of exponentials", {parts, N});
  const Tensor& weight = pass.model.params.classifier();
  stream.run(HeadLoss{.x = x,
                      .weight = weight,
                      .targets = targets,
                      .gradient_scale = gradient_scale,
                      .vocab_size = pass.model.config.vocab_size,
                      .e = e,
                      .losses = losses,
                      .scaled_x = scaled,
                      .factors = factors,
                      .sums = sums});
  stream.run(LinearBackward{
      .dy = e, .x = scaled, .weight = weight, .dx = scaled, .dweight = dweight, .accumulate = accumulate});
  stream.run(HeadGradient{.x = x,
                          .product = scaled,
                          .targets = targets,
                          .factors = factors,
                          .weight = weight,
                          .dweight = dweight});
}

// The head and the final norm: losses, and with `d` also the gradient of the last block's output. saved.norm
// is then overwritten by its gradient.
void head(const Stream& stream, Arena& arena, const Pass& pass, const Saved& saved, const Tensor& losses,
          const Tensor& gradient_scale, const Grads* grads, const Tensor& d) {
  const Model& model = pass.model;
  const Params& p = model.params;
  const int64_t N = saved.norm.y.shape[0];
  const Tensor dweight = !grads ? Tensor{} : model.config.tied ? grads->token_table : grads->head_weight;
  const bool fused = model.fused_head && dweight && !p.head_fp8;
  {
    Arena::Scope scope(arena);
    const int64_t chunk = rows_of_logits(model, N);
    const Tensor all_logits =
        arena.alloc(MemoryTag::kActivations, "logits", dtype_of(model), {chunk, model.config.padded_vocab()});
    for (int64_t first = 0; first < N; first += chunk) {
      const int64_t rows = std::min(chunk, N - first);
      const Tensor logits = all_logits.rows(0, rows), norm = saved.norm.y.rows(first, rows),
                   targets = pass.batch.targets.view({N}).rows(first, rows);
      if (fused) {
        fused_head(stream, arena, pass, norm, logits, d.rows(first, rows), targets, losses.rows(first, rows),
                   gradient_scale, dweight, pass.accumulate || first > 0);
        continue;
      }
      logits_of(stream, model, norm, logits, logits_x(model, saved.norm.y).y);
      // They take the place of the codes of x, which nothing reads any more.
      const Fp8Output dy = grads ? p.head_fp8.dy_output(logits) : Fp8Output{};
      stream.run(CrossEntropy{.logits = logits,
                              .targets = targets,
                              .losses = losses.rows(first, rows),
                              .vocab_size = model.config.vocab_size,
                              .want_gradient = grads != nullptr,
                              .gradient_scale = gradient_scale,
                              .fp8_dlogits = dy});
      if (!grads) continue;
      LinearBackward product{.dy = logits,
                             .x = norm,
                             .weight = p.classifier(),
                             .dx = norm,
                             .dweight = dweight,
                             .fp8_dy = dy.y,
                             .accumulate = pass.accumulate || first > 0};
      quantise_factors(stream, p.head_fp8, product);
      stream.run(product);
    }
  }
  if (!grads) return;
  const size_t layers = saved.blocks.size();
  norm_backward(stream, model.config, p.norm, block_input(saved, layers), saved.norm, grads->norm, d, {},
                bias_before(pass, *grads, layers), branch_before(pass, layers, d), pass.accumulate);
}

}  // namespace

AttentionSettings Model::attention_of(size_t layer, const ActiveDropout& dropout, const Batch& batch) const {
  AttentionSettings own{.config = config,
                        .plan = plan,
                        .angles = angles,
                        .dropout = dropout.at(DropoutKind::kAttention, layer),
                        .documents = batch.documents,
                        .decode = decode};
  if (batch.cache) own.cache = batch.cache->layers[layer], own.starts = batch.cache->starts;
  if (!config.scale_attention) own.plan.scale = 1;
  if (config.scale_attention_by_layer) own.plan.scale /= static_cast<float>(layer + 1);
  if (own.decode) own.decode->scale = own.plan.scale;
  return own;
}

Saved allocate_saved(Arena& arena, const ModelConfig& config, const AttentionPlan& plan, Keep keep) {
  const int64_t N = plan.shape.batch * plan.shape.tokens, C = config.channels;
  const auto take = [&](const SavedInfo& info, Tensor& tensor) {
    tensor = arena.alloc(info.tag, info.name, info.dtype, info.shape);
  };
  // A tensor is allocated for every block, or once for all blocks. residual_out may be shared because a block
  // reads its input, which is then the same tensor, before it writes residual_out.
  const auto take_those = [&](BlockSaved& block, bool kept) {
    visit_block_saved(block, config, plan, [&](const SavedInfo& info, Tensor& tensor) {
      if (keep.keeps(info.stage) == kept) take(info, tensor);
    });
  };
  Saved saved;
  take({Stage::kContract, "embeddings", plan.dtype, {N, C}}, saved.embedded);
  BlockSaved for_all;
  if (keep != kKeepAll) {
    Arena::Phase phase(arena, "block");
    take_those(for_all, false);
  }
  saved.blocks.assign(static_cast<size_t>(config.layers), for_all);
  for (int64_t l = 0; keep != Keep::nothing() && l < config.layers; ++l) {
    Arena::Phase phase(arena, "block", l);
    take_those(saved.blocks[static_cast<size_t>(l)], true);
  }
  visit_norm_saved(saved.norm, config, N, plan.dtype, Stage::kContract,
                   {"final norm", "final norm mean", "final norm rstd"}, take);
  if (plan.forward_workspace_bytes > 0)
    take({Stage::kAttention,
          "attention forward scratch",
          DType::kF32,
          {(plan.forward_workspace_bytes + 3) / 4},
          MemoryTag::kAttention},
         saved.attention_workspace);
  return saved;
}

void forward(const Stream& stream, const Model& model, const Batch& batch, const Saved& saved,
             const ActiveDropout& dropout, const OnLayer& before_layer) {
  const Params& p = model.params;
  const Pass pass{.model = model, .dropout = dropout, .batch = batch};
  const auto before = [&](int64_t layer) {
    if (before_layer) before_layer(layer);
  };
  before(-1);
  stream.run(EmbeddingForward{.tokens = batch.tokens,
                              .token_table = p.token_table,
                              .position_table = p.position_table,
                              .y = by_sequence(model, saved.embedded),
                              .documents = batch.documents,
                              .starts = batch.cache ? batch.cache->starts : Tensor{}});
  drop(stream, model, dropout.at(DropoutKind::kEmbedding), saved.embedded, saved.embedded);
  for (size_t l = 0; l < saved.blocks.size(); ++l) {
    before(static_cast<int64_t>(l));
    block_forward(stream, pass, l, block_input(saved, l), saved.blocks[l], saved.attention_workspace);
  }
  before(model.config.layers);
  norm_forward(stream, model.config, p.norm, block_input(saved, saved.blocks.size()), saved.norm,
               logits_x(model, saved.norm.y));
}

void logits_forward(const Stream& stream, const Model& model, const Tensor& rows, const Tensor& logits) {
  logits_of(stream, model, rows, logits, {});
}

void evaluate_batch(const Stream& stream, Arena& arena, const Model& model, const Batch& batch,
                    const Tensor& losses) {
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "forward");
  const Saved saved = allocate_saved(arena, model.config, model.plan, Keep::nothing());
  forward(stream, model, batch, saved);
  phase.next("head");
  head(stream, arena, {.model = model, .dropout = {}, .batch = batch}, saved, losses, {}, nullptr, {});
}

void train_batch(const Stream& stream, Arena& arena, const Model& model, const Batch& batch,
                 const Tensor& gradient_scale, const Tensor& losses, const Grads& grads,
                 const ActiveDropout& dropout, const LayerHooks& hooks, bool accumulate) {
  Arena::Scope scope(arena);
  const auto done = [&](int64_t layer) {
    if (hooks.after_backward) hooks.after_backward(layer);
  };
  Arena::Phase phase(arena, "forward");
  const Saved saved = allocate_saved(arena, model.config, model.plan, model.keep);
  forward(stream, model, batch, saved, dropout, hooks.before_forward);

  phase.next("backward");
  const Tensor d = arena.alloc(MemoryTag::kActivations, "gradient of the residual stream", dtype_of(model),
                               saved.embedded.shape);
  const Pass pass{.model = model, .dropout = dropout, .batch = batch, .accumulate = accumulate};
  {
    Arena::Phase head_phase(arena, "head");
    head(stream, arena, pass, saved, losses, gradient_scale, &grads, d);
  }
  done(model.config.layers);
  for (int64_t l = model.config.layers - 1; l >= 0; --l) {
    Arena::Phase block_phase(arena, "block", l);
    // Shared tensors still hold the values of the last block.
    if (l < model.config.layers - 1) recompute(stream, pass, saved, static_cast<size_t>(l));
    block_backward(stream, arena, pass, static_cast<size_t>(l), block_input(saved, l), saved.blocks[l], d,
                   grads);
    done(l);
  }
  drop(stream, model, dropout.at(DropoutKind::kEmbedding), d, d);
  if (grads.token_table) {  // else frozen, and so is a position table
    // Rows are added to tables. A tied one has its gradient from the classifier by now.
    if (!accumulate && !model.config.tied) stream.run(FillZero{grads.token_table});
    if (!accumulate && grads.position_table) stream.run(FillZero{grads.position_table});
    stream.run(EmbeddingBackward{.tokens = batch.tokens,
                                 .dy = by_sequence(model, d),
                                 .d_token_table = grads.token_table,
                                 .d_position_table = grads.position_table,
                                 .documents = batch.documents});
  }
  done(-1);
}

}  // namespace tessera

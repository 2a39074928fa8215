#include "model/decode.h"

#include "kernels/base/check.h"

namespace tessera {
namespace {

// cudnn serves no mask with an offset.
AttentionKind prefill_kind(AttentionKind kind) {
  return kind == AttentionKind::kCudnn ? AttentionKind::kFlash : kind;
}

AttentionShape shape_of(const ModelConfig& config, int64_t batch, int64_t tokens) {
  return {.batch = batch,
          .tokens = tokens,
          .heads = config.heads,
          .head_dim = config.head_dim,
          .mask = {/*is_causal=*/true},
          .kv_heads = config.kv_heads};
}

}  // namespace

void prefill(const Stream& stream, Arena& arena, const Model& model, const KvCache& cache,
             const Tensor& tokens, int64_t start, const Tensor& logits) {
  const int64_t T = tokens.shape[1];
  check(start >= 0 && start + T <= cache.capacity(),
        "a prompt wants room for {} tokens after {} in the cache, found {}", T, start, cache.capacity());
  Arena::Scope scope(arena);
  Model whole = model;
  AttentionShape shape = shape_of(model.config, 1, T);
  shape.mask.offset = start;
  shape.kv_tokens = start + T;
  whole.plan = choose_attention({.kind = prefill_kind(model.plan.kind),
                                 .shape = shape,
                                 .dtype = model.plan.dtype,
                                 .device = stream.backend().traits()});
  const Saved saved = allocate_saved(arena, model.config, whole.plan, Keep::nothing());
  forward(stream, whole, {.tokens = tokens, .targets = {}, .cache = &cache}, saved);
  if (logits) logits_forward(stream, whole, saved.norm.y.rows(T - 1, 1), logits);
}

Model decoding(const Model& model, const KvCache& cache, const DeviceTraits& device) {
  const ModelConfig& config = model.config;
  Model one = model;
  one.decode = choose_decode({.batch = cache.slots(),
                              .heads = config.heads,
                              .head_dim = config.head_dim,
                              .kv_heads = config.kv_heads,
                              .capacity = cache.capacity()},
                             model.plan.dtype, device);
  one.plan = {.shape = shape_of(config, cache.slots(), 1),
              .dtype = model.plan.dtype,
              .scale = one.decode->scale,
              .forward_workspace_bytes = one.decode->workspace_bytes};
  return one;
}

void decode(const Stream& stream, const Model& model, const KvCache& cache, const Tensor& tokens,
            const Saved& saved, const Tensor& logits) {
  const ModelConfig& config = model.config;
  const Params& p = model.params;
  const Batch batch{.tokens = tokens, .targets = {}, .cache = &cache};
  if (config.lora) {  // adapters stand between a product and its activation
    forward(stream, model, batch, saved);
    return logits_forward(stream, model, saved.norm.y, logits);
  }
  stream.run(EmbeddingForward{.tokens = tokens,
                              .token_table = p.token_table,
                              .position_table = p.position_table,
                              .y = saved.embedded.view({cache.slots(), 1, config.channels}),
                              .starts = cache.starts});
  Tensor x = saved.embedded;
  for (size_t l = 0; l < saved.blocks.size(); ++l) {
    const BlockParams& w = p.blocks[l];
    const BlockSaved& s = saved.blocks[l];
    const AttentionSettings a = model.attention_of(l, {}, batch);
    FusedLinear qkv{.x = x,
                    .weight = w.attention.qkv.weight,
                    .y = s.attention.qkv.view({x.shape[0], w.attention.qkv.weight.shape[0]}),
                    .bias = w.attention.qkv.bias};
    norm_first(config, w.norm1, s.norm1, qkv);
    stream.run(qkv);
    place_heads(stream, a, w.attention, s.attention);
    attention_forward(stream, a, s.attention, saved.attention_workspace);
    out_forward(stream, config, w.attention, s.attention, x, s.residual_mid);
    FusedLinear expand = fused_expand(config, w.mlp, s.residual_mid, s.mlp);
    norm_first(config, w.norm2, s.norm2, expand);
    stream.run(expand);
    contract_forward(stream, config, w.mlp, s.mlp, s.residual_mid, s.residual_out);
    x = s.residual_out;
  }
  FusedLinear head{.x = x, .weight = p.classifier(), .y = logits};
  norm_first(config, p.norm, saved.norm, head);
  stream.run(head);
}

}  // namespace tessera

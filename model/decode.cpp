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

void add_operations(const Stream& stream, const DecodeStep& step) {
  const Model& model = step.model;
  const ModelConfig& config = model.config;
  const Params& p = model.params;
  const KvCache& cache = *step.batch.cache;
  const Saved& saved = step.saved;
  stream.run(EmbeddingForward{.tokens = step.batch.tokens,
                              .token_table = p.token_table,
                              .position_table = p.position_table,
                              .y = saved.embedded.view({cache.slots(), 1, config.channels}),
                              .starts = cache.starts});
  Tensor x = saved.embedded;
  for (size_t l = 0; l < saved.blocks.size(); ++l) {
    const BlockParams& w = p.blocks[l];
    const BlockSaved& s = saved.blocks[l];
    const AttentionSettings a = model.attention_of(l, {}, step.batch);
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
  FusedLinear head{.x = x, .weight = p.classifier(), .y = step.logits};
  norm_first(config, p.norm, saved.norm, head);
  stream.run(head);
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

DecodeStep prepare_decode(const Stream& stream, Arena& arena, const Model& model, const KvCache& cache,
                          const Tensor& tokens, const Saved& saved, const Tensor& logits,
                          bool separate_kernels) {
  DecodeStep step{.model = model,
                  .batch = {.tokens = tokens, .targets = {}, .cache = &cache},
                  .saved = saved,
                  .logits = logits};
  if (model.config.lora) return step;  // adapters stand between a product and its activation
  add_operations(stream.into(step.operations), step);
  const int64_t bytes = separate_kernels ? 0 : chain_bytes(step.operations, stream.backend().traits());
  if (bytes == 0) return step;
  step.memory = arena.alloc(MemoryTag::kActivations, "what passes between a step's stages", DType::kI32,
                            {(bytes + 3) / 4});
  stream.run(FillZero{step.memory});
  return step;
}

void decode(const Stream& stream, const DecodeStep& step) {
  if (step.operations.empty()) {
    forward(stream, step.model, step.batch, step.saved);
    return logits_forward(stream, step.model, step.saved.norm.y, step.logits);
  }
  if (step.memory) return stream.run(Chain{.operations = step.operations, .memory = step.memory});
  for (const ChainedOp& op : step.operations) std::visit([&](const auto& each) { stream.run(each); }, op);
}

}  // namespace tessera

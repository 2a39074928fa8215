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
  forward(stream, model, {.tokens = tokens, .targets = {}, .cache = &cache}, saved);
  logits_forward(stream, model, saved.norm.y, logits);
}

}  // namespace tessera

#include "model/decode.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.h"
#include "model/stages.h"

namespace tessera {
namespace {

// cudnn serves no mask with an offset.
AttentionKind prefill_kind(AttentionKind kind) {
  return kind == AttentionKind::kCudnn ? AttentionKind::kFlash : kind;
}

// What the operations of a decode step do not compute; empty: they compute all of the model.
std::string what_has_no_operation(const Model& model) {
  for (const BlockKind& kind : model.params->layout().kinds.distinct())
    if (std::string why = why_no_decode(kind, model.config); !why.empty()) return why;
  if (embedding_scale(model.config, DType::kF32) != 1) return "scaled embeddings";
  if (model.config.residual_scale != 1) return "a scale of what is added to the residual stream";
  if (model.config.logit_divisor != 1) return "a divisor of the logits";
  if (model.config.norm_embeddings) return "a norm of the embeddings";
  return norm_not_in_decode(model.config);  // the final one
}

// As large wherever in a text the prompt stands, so that a plan need not know
UnrolledKeys allocate_unrolled(Arena& arena, const Model& prompt, const KvCache& cache, int64_t start) {
  int64_t rows = 0;
  for (const KvCache::Layer& layer : cache.layers) {
    if (layer.groups)
      rows = cache.capacity;
    else if (layer.ring)
      rows = std::max(rows, std::min(layer.rows() - 1 + prompt.attention.tokens(), cache.capacity));
  }
  if (rows == 0) return {};
  const Shape shape{rows, prompt.config.kv_heads, prompt.config.head_dim};
  const auto take = [&](const char* name) {
    return arena.alloc(MemoryTag::kAttention, name, prompt.attention.dtype(), shape);
  };
  return {.k = take("keys that a prompt sees"), .v = take("values that a prompt sees"), .start = start};
}

// Likewise, of a model with sparse blocks
DecodedPrompt allocate_decoded(const Stream& stream, Arena& arena, const Model& prompt, const KvCache& cache,
                               int64_t start) {
  DecodedPrompt decoded;
  int64_t bytes = 0;
  for (const BlockKind& kind : prompt.params->layout().kinds.distinct()) {
    const BlockShape blocks = prompt.sparse.shape_of(kind.spec.sparse, 0, cache.capacity);
    if (blocks.size == 0) continue;
    const DecodePlan plan = choose_decode({.batch = prompt.attention.tokens(),
                                           .heads = prompt.config.heads,
                                           .head_dim = prompt.config.head_dim,
                                           .kv_heads = prompt.config.kv_heads,
                                           .capacity = cache.capacity,
                                           .scores = kind.spec.scores,
                                           .one_cache = true,
                                           .blocks = blocks},
                                          prompt.attention.dtype(), stream.backend().traits());
    bytes = std::max(bytes, plan.workspace_bytes);
    if (decoded.places) continue;
    std::vector<int32_t> places(static_cast<size_t>(prompt.attention.tokens()));
    std::iota(places.begin(), places.end(), static_cast<int32_t>(start));
    decoded.places =
        arena.alloc(MemoryTag::kData, "places of a prompt's tokens", DType::kI32, {std::ssize(places)});
    stream.run(Copy{{places.data(), DType::kI32, decoded.places.shape, Device::kCpu}, decoded.places});
  }
  if (bytes > 0)
    decoded.workspace = arena.alloc(MemoryTag::kAttention, "workspace of a prompt within a sparse block",
                                    DType::kF32, {(bytes + 3) / 4});
  return decoded;
}

void add_operations(const Stream& stream, DecodeStep& step) {
  const Model& model = step.model;
  const Saved& saved = step.saved;
  const ActiveDropout no_dropout;
  const Pass pass{.stream = stream, .model = model, .batch = step.batch, .dropout = no_dropout};
  DecodeBuilder builder;
  builder.embed({.tokens = step.batch.tokens,
                 .token_table = step.tables->token_table,
                 .position_table = step.tables->position_table,
                 .y = by_sequence(model, saved.embedded),
                 .starts = step.batch.cache->starts});
  for (size_t l = 0; l < saved.blocks.size(); ++l) decode_stages(Block(pass, saved, l), builder);
  builder.add(decode_logits({.model = model, .weights = *step.head, .saved = saved, .logits = step.logits}),
              DecodeBuilder::Reads::kResidual, DecodeBuilder::kLogits);
  step.operations = builder.take();
}

}  // namespace

int64_t prompt_tokens_at_once(const ModelConfig& config, int64_t start, int64_t left) {
  int64_t block = 1;  // the largest, of which the others are parts
  for (const SparseRun& run : config.sparse.runs())
    if (run.pattern.window > 0) block = std::max(block, run.pattern.block);
  const int64_t within = start % block;
  return within == 0 ? left : std::min(left, block - within);
}

void prefill(const Stream& stream, Arena& arena, const Prefill& prompt) {
  const auto& [model, cache, tokens, start, logits] = prompt;
  const ModelConfig& config = model.config;
  const int64_t T = tokens.shape[1];
  check(start >= 0 && start + T <= cache.capacity,
        "a prompt needs room for {} tokens after {} in the cache, found {}", T, start, cache.capacity);
  Arena::Scope scope(arena);
  Model whole = model;
  AttentionShape shape{.batch = 1,
                       .tokens = T,
                       .heads = config.heads,
                       .head_dim = config.head_dim,
                       .mask = {/*is_causal=*/true},
                       .kv_heads = config.kv_heads,
                       .kv_tokens = start + T};
  shape.mask.offset = start;
  whole.attention = AttentionPlans(model.params->layout().kinds,
                                   {.kind = prefill_kind(model.attention.kind()),
                                    .shape = shape,
                                    .dtype = model.attention.dtype(),
                                    .device = stream.backend().traits()},
                                   model.sparse);
  const Saved saved = allocate_saved(arena, whole, Keep::nothing());
  KvCache own = cache;
  own.unrolled = allocate_unrolled(arena, whole, cache, start);
  own.decoded = allocate_decoded(stream, arena, whole, cache, start);
  const Batch batch{.tokens = tokens, .targets = {}, .cache = &own};
  forward(stream, {.model = whole, .batch = batch, .saved = saved});
  if (!logits) return;
  const int64_t n = logits.shape[0];
  logits_forward(stream, {.model = whole, .rows = saved.norm.y.rows(T - n, n), .logits = logits});
}

Model decoding(const Model& model, const KvCache& cache, const DeviceTraits& device) {
  const ModelConfig& config = model.config;
  Model one = model;
  one.mlp_chunk = 0;  // its rows are few
  one.attention = AttentionPlans::decoding(model.params->layout().kinds,
                                           {.shape = {.batch = cache.slots(),
                                                      .heads = config.heads,
                                                      .head_dim = config.head_dim,
                                                      .kv_heads = config.kv_heads,
                                                      .capacity = cache.capacity,
                                                      .cache = cache.small.format.dtype},
                                            .dtype = model.attention.dtype(),
                                            .device = device},
                                           model.sparse);
  return one;
}

DecodeStep prepare_decode(const Stream& stream, Arena& arena, const DecodeTensors& tensors) {
  DecodeStep step{.model = tensors.model,
                  .batch = {.tokens = tensors.tokens, .targets = {}, .cache = &tensors.cache},
                  .saved = tensors.saved,
                  .logits = tensors.logits};
  const Model& model = step.model;
  if (!model.params->has_whole_weights()) {
    step.why_separate_kernels = "weights that are gathered, copied or widened block by block";
    return step;
  }
  step.tables = model.lease_tables();
  for (size_t l = 0; l < step.saved.blocks.size(); ++l)
    step.blocks.push_back(model.lease_block(l, LeaseFor::kInference));
  step.head = model.lease_head(LeaseFor::kInference);
  step.why_separate_kernels = what_has_no_operation(model);
  if (!step.why_separate_kernels.empty()) return step;
  add_operations(stream, step);
  const DeviceTraits& device = stream.backend().traits();
  step.why_separate_kernels =
      tensors.separate_kernels ? "as asked for" : why_not_one_kernel(step.operations, device);
  if (!step.why_separate_kernels.empty()) return step;
  step.memory = arena.alloc(MemoryTag::kActivations, "what passes between a step's instructions", DType::kI32,
                            {(decode_step_bytes(step.operations, device) + 3) / 4});
  stream.run(FillZero{step.memory});
  return step;
}

void decode(const Stream& stream, const DecodeStep& step) {
  if (const KvCache& cache = *step.batch.cache; cache.small.groups)
    stream.run(QuantiseCache{.format = cache.small.format,
                             .k = cache.small.k,
                             .v = cache.small.v,
                             .groups = cache.small.groups,
                             .starts = cache.starts});
  if (step.operations.empty()) {
    forward(stream, {.model = step.model, .batch = step.batch, .saved = step.saved});
    return logits_forward(stream, {.model = step.model, .rows = step.saved.norm.y, .logits = step.logits});
  }
  if (step.memory) {
    stream.run(FusedDecodeStep{.operations = step.operations, .memory = step.memory});
  } else {
    for (const DecodeOp& op : step.operations) op.each_plain([&](const auto& one) { stream.run(one); });
  }
  cap_logits(stream, step.model.config, step.logits);
}

}  // namespace tessera

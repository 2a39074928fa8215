#include "model/context.h"

namespace tessera {
namespace {

Heads all_heads(const Tensor& tensor) { return {tensor, 0, tensor.shape[2]}; }

}  // namespace

Tensor ContextPass::own(const Tensor& gathered) const {
  const Shape& all = gathered.shape;
  const Shape shape{all[0] / axis->size(), all[1], all[2], all[3]};
  const int64_t each = shape.numel();
  return gathered.view({gathered.numel()}).rows(axis->rank() * each, each).view(shape);
}

ContextBuffers allocate_context(Arena& arena, const ContextShape& s) {
  const int64_t heads = 2 * s.kv_heads;
  const auto take = [&](const char* name, int64_t batch, int64_t tokens) {
    return arena.alloc(MemoryTag::kAttention, name, s.dtype, {batch, tokens, heads, s.head_dim});
  };
  return {.gathered = take("keys and values as gathered", s.ranks * s.batch, s.tokens),
          .keys = take("keys and values of the context", s.batch, s.all_tokens)};
}

ContextBackward allocate_context_backward(Arena& arena, const ContextBuffers& like) {
  const Tensor &keys = like.keys, &gathered = like.gathered;
  return {.d_keys = arena.alloc(MemoryTag::kAttention, "gradients of the context's keys and values",
                                keys.dtype, keys.shape),
          .d_gathered = arena.alloc(MemoryTag::kAttention, "gradients of keys and values to be summed",
                                    DType::kF32, gathered.shape)};
}

void gather_keys(const Stream& stream, const ContextPass& context, const Heads& k, const Heads& v) {
  const auto& [gathered, keys] = context.buffers;
  const Tensor own = context.own(gathered);
  stream.run(MoveHeads{.from = k, .to = {own, 0, k.count}});
  stream.run(MoveHeads{.from = v, .to = {own, k.count, v.count}});
  context.axis->all_gather({.part = own, .whole = gathered});
  context.axis->wait();
  stream.run(
      MoveHeads{.from = all_heads(gathered), .to = all_heads(keys), .rows = context.tables.gathered_rows});
}

void reduce_key_gradients(const Stream& stream, const ContextPass& context, const ContextBackward& backward,
                          const Heads& dk, const Heads& dv) {
  const auto& [d_keys, d_gathered] = backward;
  const Tensor own = context.own(d_gathered);
  stream.run(MoveHeads{
      .from = all_heads(d_keys), .to = all_heads(d_gathered), .rows = context.tables.scattered_rows});
  context.axis->reduce_scatter_sum({.whole = d_gathered, .part = own});
  context.axis->wait();
  stream.run(MoveHeads{.from = {own, 0, dk.count}, .to = dk});
  stream.run(MoveHeads{.from = {own, dk.count, dv.count}, .to = dv});
}

}  // namespace tessera

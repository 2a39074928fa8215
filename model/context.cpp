#include "model/context.h"

namespace tessera {
namespace {

// Those of a part in a tensor of its own
KeysAndValues halves(const Tensor& tensor) {
  const int64_t heads = tensor.shape[2] / 2;
  return {.k = {tensor, 0, heads}, .v = {tensor, heads, heads}};
}

}  // namespace

Tensor ContextPass::own(const Tensor& gathered) const {
  const Shape& all = gathered.shape;
  const Shape shape{all[0] / axis->size(), all[1], all[2], all[3]};
  const int64_t each = shape.numel();
  return gathered.view({gathered.numel()}).rows(axis->rank() * each, each).view(shape);
}

int64_t heads_of_part(const AttentionShape& shape) {
  constexpr int64_t kMostBytes = int64_t{2} << 30;
  constexpr int64_t kBytes = 2 + 2 + 2 + 4;  // of a number: of the buffers, and of those of the backward
  const int64_t of_head = shape.batch * shape.kv_tokens * 2 * shape.head_dim * kBytes;
  for (int64_t heads = shape.kv_heads; heads > 1; --heads)
    if (shape.kv_heads % heads == 0 && heads * of_head <= kMostBytes) return heads;
  return 1;
}

ContextBuffers allocate_context(Arena& arena, int64_t ranks, const AttentionShape& part, DType dtype) {
  const auto take = [&](const char* name, int64_t batch, int64_t tokens) {
    return arena.alloc(MemoryTag::kAttention, name, dtype, {batch, tokens, 2 * part.kv_heads, part.head_dim});
  };
  return {.gathered = take("keys and values as gathered", ranks * part.batch, part.tokens),
          .keys = take("keys and values of the context", part.batch, part.kv_tokens)};
}

ContextBackward allocate_context_backward(Arena& arena, const ContextBuffers& like) {
  const Tensor &keys = like.keys, &gathered = like.gathered;
  return {.d_keys = arena.alloc(MemoryTag::kAttention, "gradients of the context's keys and values",
                                keys.dtype, keys.shape),
          .d_gathered = arena.alloc(MemoryTag::kAttention, "gradients of keys and values to be summed",
                                    DType::kF32, gathered.shape)};
}

GatheredKeys::GatheredKeys(const Stream& stream, const ContextPass& context, const KeysAndValues& own,
                           int64_t parts)
    : stream_(stream), context_(context), own_(own), parts_(parts) {
  begin();
}

void GatheredKeys::begin() {
  const Tensor& gathered = context_.buffers.gathered;
  const Tensor own = context_.own(gathered);
  const KeysAndValues to = halves(own);
  stream_.run(MoveHeads{.from = part_of(own_.k, part_, parts_), .to = to.k});
  stream_.run(MoveHeads{.from = part_of(own_.v, part_, parts_), .to = to.v});
  context_.axis->all_gather({.part = own, .whole = gathered});
  started_ = context_.axis->started();
}

KeysAndValues GatheredKeys::next() {
  const auto& [gathered, keys] = context_.buffers;
  context_.axis->wait_for(started_);
  stream_.run(
      MoveHeads{.from = all_heads(gathered), .to = all_heads(keys), .rows = context_.tables.gathered_rows});
  if (++part_ < parts_) begin();
  return halves(keys);
}

KeyGradients::KeyGradients(const Stream& stream, const ContextPass& context, const ContextBackward& buffers,
                           const KeysAndValues& own, int64_t parts)
    : stream_(stream), context_(context), buffers_(buffers), own_(own), parts_(parts) {}

KeysAndValues KeyGradients::of_part() const { return halves(buffers_.d_keys); }

void KeyGradients::sum() {
  const Tensor& sums = buffers_.d_gathered;
  if (part_ > 0) finish();
  stream_.run(MoveHeads{
      .from = all_heads(buffers_.d_keys), .to = all_heads(sums), .rows = context_.tables.scattered_rows});
  context_.axis->reduce_scatter_sum({.whole = sums, .part = context_.own(sums)});
  ++part_;
}

void KeyGradients::finish() {
  const KeysAndValues sums = halves(context_.own(buffers_.d_gathered));
  context_.axis->wait();
  stream_.run(MoveHeads{.from = sums.k, .to = part_of(own_.k, part_ - 1, parts_)});
  stream_.run(MoveHeads{.from = sums.v, .to = part_of(own_.v, part_ - 1, parts_)});
}

}  // namespace tessera

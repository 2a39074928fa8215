#include "model/context_rows.h"

namespace tessera {
namespace {

Heads as_heads(const Tensor& rows) { return {rows.view({1, rows.numel(), 1, 1}), 0, 1}; }

}  // namespace

Tensor rows_of_all_tokens(Arena& arena, const Pass& pass, const Tensor& own) {
  Communicator* const axis = pass.model.context;
  if (!axis) return own;
  const Tensor& places = pass.batch.context.gathered_rows;
  const Tensor all = arena.alloc(MemoryTag::kActivations, "rows of all tokens", own.dtype, {places.numel()});
  Arena::Scope scope(arena);
  const Tensor gathered =
      arena.alloc(MemoryTag::kActivations, "rows as gathered", own.dtype, {axis->size(), own.numel()});
  const Tensor part = gathered.rows(axis->rank(), 1);
  pass.stream.run(Copy{own, part.view(own.shape)});
  axis->all_gather({.part = part, .whole = gathered});
  axis->wait();
  pass.stream.run(MoveHeads{.from = as_heads(gathered), .to = as_heads(all), .rows = places});
  return all;
}

void take_own_rows(const Pass& pass, const Tensor& all, const Tensor& own) {
  const int64_t N = own.numel();
  const Communicator* const axis = pass.model.context;
  if (!axis) return pass.stream.run(Copy{all.view(own.shape), own});
  pass.stream.run(MoveHeads{.from = as_heads(all),
                            .to = as_heads(own),
                            .rows = pass.batch.context.scattered_rows.rows(axis->rank() * N, N)});
}

}  // namespace tessera

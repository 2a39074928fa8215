#include "model/sparse_lists.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

SparseLists::SparseLists(const Stream& stream, Arena& arena, const ModelConfig& model, int64_t tokens)
    : tokens_(tokens) {
  for (const auto& [pattern, blocks] : model.sparse.counts(model.layers)) {
    if (pattern.chosen > 0 || pattern.shows_all(tokens)) continue;
    const BlockLists lists = pattern.lists(tokens);
    const Shape shape{lists.shape().numbers()};
    const Tensor numbers = arena.alloc(MemoryTag::kAttention, "lists of sparse blocks", DType::kI32, shape);
    listed_.push_back({.pattern = pattern, .shape = lists.shape(), .numbers = numbers});
    if (arena.is_plan()) continue;
    stream.run(
        Copy{{const_cast<int32_t*>(lists.numbers().data()), DType::kI32, shape, Device::kCpu}, numbers});
    stream.synchronize();
  }
}

const SparseLists::Listed* SparseLists::find(const SparsePattern& pattern) const {
  const auto found = std::ranges::find(listed_, pattern, &Listed::pattern);
  return found == listed_.end() ? nullptr : &*found;
}

BlockShape SparseLists::shape_of(const SparsePattern& pattern, int64_t offset, int64_t end) const {
  if (pattern.chosen > 0 || pattern.shows_all(end)) return {};
  const Listed* found = find(pattern);
  check(found && end <= tokens_,
        "sparse attention ({}) of {} tokens needs lists of as many, and those of this session are of {}",
        SparseRun::text(pattern), end, tokens_);
  BlockShape shape = found->shape;
  shape.causal_pairs = pattern.pairs(end) - pattern.pairs(offset);
  return shape;
}

const Tensor& SparseLists::numbers_of(const SparsePattern& pattern) const {
  static const Tensor kNone;
  const Listed* found = find(pattern);
  return found ? found->numbers : kNone;
}

}  // namespace tessera

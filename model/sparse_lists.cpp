#include "model/sparse_lists.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

namespace {

// Lists of a rank. A block of the pattern may be several dealt ones.
BlockLists lists_of_rank(const SparsePattern& pattern, int64_t tokens, const DealtBlocks& dealt) {
  const int64_t parts = pattern.block / dealt.size, rows = std::ssize(dealt.blocks) / dealt.ranks;
  std::vector<int64_t> own;
  std::vector<std::vector<int64_t>> keys;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t block = dealt.blocks[static_cast<size_t>(row * dealt.ranks + dealt.rank)];
    own.push_back(block);
    keys.push_back(block * dealt.size < tokens ? pattern.keys_of(block / parts) : std::vector<int64_t>{});
  }
  return BlockLists(dealt.size, 1, rows * dealt.size, tokens,
                    [&](int64_t /*list*/, int64_t row, int64_t column) {
                      const auto r = static_cast<size_t>(row);
                      return column <= own[r] && std::ranges::binary_search(keys[r], column / parts);
                    });
}

// Pairs of a query block and a key block in the lists of the rank that has most of them
int64_t most_pairs(const SparsePattern& pattern, int64_t tokens, const DealtBlocks& dealt) {
  const int64_t parts = pattern.block / dealt.size;
  std::vector<int64_t> pairs(static_cast<size_t>(dealt.ranks));
  for (size_t i = 0; i < dealt.blocks.size(); ++i) {
    const int64_t block = dealt.blocks[i];
    if (block * dealt.size < tokens)
      pairs[i % pairs.size()] += (pattern.blocks_seen_by(block / parts) - 1) * parts + block % parts + 1;
  }
  return std::ranges::max(pairs);
}

}  // namespace

SparseLists::SparseLists(const Stream& stream, Arena& arena, const ModelConfig& model, int64_t tokens,
                         const DealtBlocks& dealt)
    : tokens_(tokens), ranks_(dealt.ranks) {
  for (const auto& [pattern, blocks] : model.sparse.counts(model.layers)) {
    if (pattern.chosen > 0 || pattern.shows_all(tokens)) continue;
    const BlockLists lists = dealt.size > 0 ? lists_of_rank(pattern, tokens, dealt) : pattern.lists(tokens);
    const int64_t count = lists.shape().numbers();
    BlockShape most = lists.shape();  // of any rank
    if (dealt.size > 0) most.pairs = most_pairs(pattern, tokens, dealt);
    const Tensor numbers =
        arena.alloc(MemoryTag::kAttention, "lists of sparse blocks", DType::kI32, {most.numbers()})
            .rows(0, count);
    listed_.push_back({.pattern = pattern, .shape = lists.shape(), .numbers = numbers});
    if (arena.is_plan()) continue;
    stream.run(
        Copy{{const_cast<int32_t*>(lists.numbers().data()), DType::kI32, {count}, Device::kCpu}, numbers});
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
  // All ranks of a context have about equally many.
  shape.causal_pairs = (pattern.pairs(end) - pattern.pairs(offset)) / static_cast<double>(ranks_);
  return shape;
}

const Tensor& SparseLists::numbers_of(const SparsePattern& pattern) const {
  static const Tensor kNone;
  const Listed* found = find(pattern);
  return found ? found->numbers : kNone;
}

}  // namespace tessera

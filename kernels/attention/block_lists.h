// The lists of sparse blocks as one array of numbers, from which AttnBlocks points.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/attention/attention.h"

namespace tessera {

// How large lists are: what a plan has to know of them
struct BlockShape {
  int64_t size = 0;  // tokens of a block; 0: no lists
  int64_t lists = 1, query_blocks = 0, key_blocks = 0;
  int64_t pairs = 0;  // of blocks, in all lists
  // Of tokens of which a list shows one to the other, which is not earlier: in the mean of all lists
  double causal_pairs = 0;

  // begins, seen_begins; keys, queries, places
  int64_t numbers() const { return lists * (query_blocks + key_blocks + 2) + 3 * pairs; }
  AttnBlocks at(const int32_t* numbers) const;      // null: the sizes only
  static BlockShape of(const AttnBlocks& on_host);  // without causal_pairs
  bool operator==(const BlockShape&) const = default;
};

// Lists of as many blocks as `tokens` have, of pairs for which shows(list, query block, key block)
class BlockLists {
 public:
  using Shows = std::function<bool(int64_t list, int64_t query_block, int64_t key_block)>;
  BlockLists(int64_t size, int64_t lists, int64_t query_tokens, int64_t key_tokens, const Shows& shows);

  const BlockShape& shape() const { return shape_; }
  const std::vector<int32_t>& numbers() const { return numbers_; }
  AttnBlocks blocks() const { return shape_.at(numbers_.data()); }  // on the host

 private:
  BlockShape shape_;
  std::vector<int32_t> numbers_;
};

}  // namespace tessera

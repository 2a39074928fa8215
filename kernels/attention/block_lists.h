// The lists of sparse blocks in one array of numbers; AttnBlocks has pointers into it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/attention/attention.h"

namespace tessera {

// The sizes of the lists, which is all that a plan needs to know
struct BlockShape {
  int64_t size = 0;  // tokens of a block; 0: no lists
  int64_t lists = 1, query_blocks = 0, key_blocks = 0;
  int64_t pairs = 0;  // of a query block and a key block, in all lists
  // The pairs of a query and a key that a list and the causal mask show: the mean over all lists
  double causal_pairs = 0;

  // begins, seen_begins; keys, queries, places
  int64_t numbers() const { return lists * (query_blocks + key_blocks + 2) + 3 * pairs; }
  AttnBlocks at(const int32_t* numbers) const;      // null: the sizes only
  static BlockShape of(const AttnBlocks& on_host);  // without causal_pairs
  bool operator==(const BlockShape&) const = default;
};

// Makes lists of as many blocks as the tokens have. They have the pairs for which shows(list, query block,
// key block).
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

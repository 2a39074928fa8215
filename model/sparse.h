// SparsePattern: which blocks of keys each block of queries sees in causal attention, by rules that no data
// changes.
//
// Query block i sees key block j, neither later than itself, where one of these holds:
//
//   i - j < window                 the last blocks, its own among them
//   j < global                     the first blocks of the sequence
//   (i - j) mod stride = 0         every stride-th block back
//   j is one of `random` others    drawn for block i by `seed`
//
// Method: Child et al., "Generating Long Sequences with Sparse Transformers", arXiv:1904.10509 (window and
// stride); Beltagy et al., "Longformer", arXiv:2004.05150 (window and global); Zaheer et al., "Big Bird",
// arXiv:2007.14062 (all but stride).
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

class BlockLists;  // kernels/attention/block_lists.h

struct SparsePattern {
  int64_t window = 0;  // blocks; 0: every block is seen, and the rest is 0
  int64_t global = 0, stride = 0, random = 0, seed = 0;
  int64_t block = 128;  // tokens of a block: a power of two from 128 on

  explicit operator bool() const { return window > 0; }
  bool operator==(const SparsePattern&) const = default;

  // The key blocks that a query block sees, rising
  std::vector<int64_t> keys_of(int64_t query_block) const;
  BlockLists lists(int64_t tokens) const;
  // Of a sequence of so many tokens: pairs of a query and a key that it sees
  double pairs(int64_t tokens) const;
  bool shows_all(int64_t tokens) const { return window == 0 || window * block >= tokens; }
};

}  // namespace tessera

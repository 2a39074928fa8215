// SparsePattern: which blocks of keys a block of queries sees in causal attention: either by rules, which do
// not depend on the data, or by the choice of each query. SparseBlocks: the pattern of each block of a model
// (model.sparse).
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
//
// With `chosen` none of these rules holds. Each query of each head sees its own block and chosen - 1 of the
// blocks before it, those whose mean keys score highest: see AttnChoice of attention.h. Blocks begin anew
// with each document.
#pragma once

#include <compare>
#include <string_view>

#include "model/block_pattern.h"

namespace tessera {

class BlockLists;  // kernels/attention/block_lists.h

struct SparsePattern {
  int64_t window = 0;  // in blocks; 0 without `chosen`: every block is seen, and all other fields are
                       // defaults
  int64_t global = 0, stride = 0, random = 0, seed = 0;
  int64_t block = 128;  // tokens of a block; kernels on GPUs need a power of two, at least 128
  int64_t chosen = 0;   // how many blocks each query sees, its own among them; 0: the rules above hold

  explicit operator bool() const { return window > 0 || chosen > 0; }
  auto operator<=>(const SparsePattern&) const = default;

  // The key blocks that a query block sees, rising. Neither this function nor lists() may be called with
  // `chosen`.
  std::vector<int64_t> keys_of(int64_t query_block) const;
  // How many key blocks a query block sees, its own among them; also with `chosen`
  int64_t blocks_seen_by(int64_t query_block) const;
  BlockLists lists(int64_t tokens) const;
  // The number of pairs of a query and a key that it sees, where both are among the tokens `begin` to `end` -
  // 1 of a sequence
  double pairs(int64_t begin, int64_t end) const;
  double pairs(int64_t tokens) const { return pairs(0, tokens); }
  // Whether queries of a sequence of this many tokens choose blocks, and do not see all of them
  bool chooses(int64_t tokens) const { return chosen > 0 && !shows_all(tokens); }
  bool shows_all(int64_t tokens) const {
    return chosen > 0 ? chosen * block >= tokens : window == 0 || window * block >= tokens;
  }
};

struct SparseRun {
  using Value = SparsePattern;
  SparsePattern pattern = {};
  int64_t blocks = 1;  // that follow one another
  bool operator==(const SparseRun&) const = default;

  static void check(const SparsePattern& pattern);        // Error: numbers that make no sense
  static std::string text(const SparsePattern& pattern);  // "window:8+global:1"
};

using SparseBlocks = BlockPattern<SparseRun>;

// Reads what text_of() writes, such as "window:8+global:1+random:2*3,full". Error, with what was found and
// what is expected: an unknown word or one given twice, a number out of range, a size of blocks that
// kernels on GPUs do not serve, no window, or a seed without random.
SparseBlocks read_sparse(std::string_view text);

}  // namespace tessera

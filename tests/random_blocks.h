// Sparse blocks for tests: matrices with rows that see nothing, one block, all of them, and some by chance.
#pragma once

#include <random>

#include "kernels/attention/block_lists.h"
#include "tests/attention_reference.h"

namespace tessera::test {

struct RandomBlocks {
  int64_t size, lists = 1;
  uint32_t seed = 1;
};
inline BlockCase random_blocks(const RandomBlocks& of, int64_t query_tokens, int64_t key_tokens) {
  BlockCase c{.size = of.size,
              .lists = of.lists,
              .query_blocks = (query_tokens + of.size - 1) / of.size,
              .key_blocks = (key_tokens + of.size - 1) / of.size};
  std::mt19937 generator(of.seed);
  for (int64_t row = 0; row < c.lists * c.query_blocks; ++row) {
    const uint32_t kind = generator() % 8;  // 0: nothing, 1: one block, 2: all
    const auto one = static_cast<int64_t>(generator()) % c.key_blocks;
    for (int64_t column = 0; column < c.key_blocks; ++column) {
      const bool by_chance = generator() % 5 < 2;
      c.shown.push_back(kind == 0 ? false : kind == 1 ? column == one : kind == 2 || by_chance);
    }
  }
  return c;
}
inline BlockLists lists_of(const BlockCase& c, int64_t query_tokens, int64_t key_tokens) {
  return BlockLists(c.size, c.lists, query_tokens, key_tokens,
                    [&](int64_t list, int64_t row, int64_t column) { return c.shows(list, row, column); });
}

}  // namespace tessera::test

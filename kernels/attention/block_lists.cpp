#include "kernels/attention/block_lists.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

AttnBlocks BlockShape::at(const int32_t* numbers) const {
  if (size == 0) return {};
  AttnBlocks blocks{};
  blocks.size = static_cast<int>(size), blocks.lists = static_cast<int>(lists);
  blocks.query_blocks = static_cast<int>(query_blocks), blocks.key_blocks = static_cast<int>(key_blocks);
  if (numbers == nullptr) return blocks;
  blocks.begins = numbers;
  blocks.seen_begins = blocks.begins + lists * (query_blocks + 1);
  blocks.keys = blocks.seen_begins + lists * (key_blocks + 1);
  blocks.queries = blocks.keys + pairs;
  blocks.places = blocks.queries + pairs;
  return blocks;
}

BlockShape BlockShape::of(const AttnBlocks& b) {
  if (b.size == 0) return {};
  return {.size = b.size,
          .lists = b.lists,
          .query_blocks = b.query_blocks,
          .key_blocks = b.key_blocks,
          .pairs = b.begins[int64_t{b.lists} * (b.query_blocks + 1) - 1]};
}

namespace {

// Pairs of a query and a key that is not later, of a block of each
double causal_pairs_of(int64_t size, int64_t row, int64_t column, int64_t queries, int64_t keys) {
  const auto rows = static_cast<double>(std::min(size, queries - row * size)),
             columns = static_cast<double>(std::min(size, keys - column * size));
  if (column > row) return 0;
  if (column < row) return rows * columns;
  const double both = std::min(rows, columns);
  return both * (both + 1) / 2 + (rows - both) * columns;
}

}  // namespace

BlockLists::BlockLists(int64_t size, int64_t lists, int64_t query_tokens, int64_t key_tokens,
                       const Shows& shows)
    : shape_{.size = size, .lists = lists} {
  check(size > 0 && lists > 0 && query_tokens > 0 && key_tokens > 0,
        "lists of sparse blocks need a positive size, lists and tokens, found {}, {}, {} queries, {} keys",
        size, lists, query_tokens, key_tokens);
  const int64_t rows = shape_.query_blocks = (query_tokens + size - 1) / size,
                columns = shape_.key_blocks = (key_tokens + size - 1) / size;
  std::vector<int32_t> begins, seen_begins, keys, queries, places;
  for (int64_t list = 0; list < lists; ++list) {
    std::vector<std::vector<int32_t>> seen_by(columns), places_by(columns);
    for (int64_t row = 0; row < rows; ++row) {
      begins.push_back(static_cast<int32_t>(keys.size()));
      for (int64_t column = 0; column < columns; ++column) {
        if (!shows(list, row, column)) continue;
        seen_by[column].push_back(static_cast<int32_t>(row));
        places_by[column].push_back(static_cast<int32_t>(keys.size()) - begins.back());
        keys.push_back(static_cast<int32_t>(column));
        shape_.causal_pairs +=
            causal_pairs_of(size, row, column, query_tokens, key_tokens) / static_cast<double>(lists);
      }
    }
    begins.push_back(static_cast<int32_t>(keys.size()));
    for (int64_t column = 0; column < columns; ++column) {
      seen_begins.push_back(static_cast<int32_t>(queries.size()));
      queries.insert(queries.end(), seen_by[column].begin(), seen_by[column].end());
      places.insert(places.end(), places_by[column].begin(), places_by[column].end());
    }
    seen_begins.push_back(static_cast<int32_t>(queries.size()));
  }
  shape_.pairs = static_cast<int64_t>(keys.size());
  for (const auto* part : {&begins, &seen_begins, &keys, &queries, &places})
    numbers_.insert(numbers_.end(), part->begin(), part->end());
}

}  // namespace tessera

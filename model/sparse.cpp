#include "model/sparse.h"

#include <algorithm>
#include <random>

#include "kernels/attention/block_lists.h"

namespace tessera {

std::vector<int64_t> SparsePattern::keys_of(int64_t query_block) const {
  std::vector<int64_t> seen, others;
  for (int64_t j = 0; j <= query_block; ++j) {
    const int64_t back = query_block - j;
    const bool shown = back < window || j < global || (stride > 0 && back % stride == 0);
    (shown ? seen : others).push_back(j);
  }
  std::mt19937_64 generator(static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15 +
                            static_cast<uint64_t>(query_block));
  const auto drawn = static_cast<size_t>(std::min<int64_t>(random, std::ssize(others)));
  for (size_t i = 0; i < drawn; ++i) {
    std::swap(others[i], others[i + generator() % (others.size() - i)]);
    seen.push_back(others[i]);
  }
  std::ranges::sort(seen);
  return seen;
}

BlockLists SparsePattern::lists(int64_t tokens) const {
  std::vector<std::vector<int64_t>> keys;
  for (int64_t row = 0; row * block < tokens; ++row) keys.push_back(keys_of(row));
  return BlockLists(block, 1, tokens, tokens, [&](int64_t /*list*/, int64_t row, int64_t column) {
    return std::ranges::binary_search(keys[static_cast<size_t>(row)], column);
  });
}

double SparsePattern::pairs(int64_t tokens) const {
  if (shows_all(tokens)) return static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  double pairs = 0;
  for (int64_t row = 0; row * block < tokens; ++row) {
    const auto rows = static_cast<double>(std::min(block, tokens - row * block)),
               before = static_cast<double>(std::ssize(keys_of(row)) - 1);  // whole blocks beside its own
    pairs += rows * before * static_cast<double>(block) + rows * (rows + 1) / 2;
  }
  return pairs;
}

}  // namespace tessera

// ListedKeys: what the list of sparse blocks of a query head shows (kernels/attention/blocks.h).
#pragma once

#include <algorithm>

#include "kernels/attention/blocks.h"

namespace tessera::cpu {

struct ListedKeys {
  attention::Blocks blocks;
  int list;

  ListedKeys(const attention::Blocks& of_call, int64_t head) : blocks(of_call), list(of_call.list_of(head)) {}
  // Whether the list shows one of `keys` to one of `queries`
  bool meet(attention::Span queries, attention::Span keys, const attention::Mask& mask) const {
    if (!blocks) return true;
    const attention::Span columns = keys.tiles(blocks.size);
    for (int i = queries.begin; i < queries.end; ++i)
      if (!of_query(i, mask).places_within(columns).empty()) return true;
    return false;
  }
  // `nothing` to the scores of keys that the list does not show: rows [queries] of columns [keys]
  void hide(attention::Span queries, attention::Span keys, const attention::Mask& mask, float* scores,
            float nothing) const {
    if (!blocks) return;
    const attention::Span columns = keys.tiles(blocks.size);
    for (int i = queries.begin; i < queries.end; ++i, scores += keys.size()) {
      const attention::BlockList seen = of_query(i, mask);
      for (int block = columns.begin; block < columns.end; ++block) {
        if (seen.contains(block)) continue;
        const int begin = std::max(block * blocks.size, keys.begin),
                  end = std::min((block + 1) * blocks.size, keys.end);
        std::fill(scores + begin - keys.begin, scores + end - keys.begin, nothing);
      }
    }
  }

 private:
  attention::BlockList of_query(int query, const attention::Mask& mask) const {
    return blocks.keys_of(list, mask.position_of(query) / blocks.size);
  }
};

}  // namespace tessera::cpu

// ListedKeys: the keys that a query head sees, by its list of sparse blocks (kernels/attention/blocks.h) or
// by the choices of its queries in a mixture of blocks (kernels/attention/choice.h).
#pragma once

#include <algorithm>

#include "kernels/attention/blocks.h"
#include "kernels/attention/choice.h"

namespace tessera::cpu {

struct ListedKeys {
  attention::Blocks blocks;
  int list;
  attention::Chosen chosen;  // of the rows of this head

  ListedKeys(const attention::Blocks& of_call, int64_t head, const attention::Chosen& chosen_by_head = {})
      : blocks(of_call), list(of_call.list_of(head)), chosen(chosen_by_head) {}
  // Whether the list shows one of `keys` to one of `queries`
  bool meet(attention::Span queries, attention::Span keys, const attention::Mask& mask) const {
    if (chosen) {
      bool any = false;
      for (int i = queries.begin; i < queries.end && !any; ++i)
        each_shown(i, keys, mask, [&](attention::Span) { any = true; });
      return any;
    }
    if (!blocks) return true;
    const attention::Span columns = keys.tiles(blocks.size);
    for (int i = queries.begin; i < queries.end; ++i)
      if (!of_query(i, mask).places_within(columns).empty()) return true;
    return false;
  }
  // Sets the scores of keys that the list does not show to `nothing`. `scores` has rows [queries] of columns
  // [keys].
  void hide(attention::Span queries, attention::Span keys, const attention::Mask& mask, float* scores,
            float nothing) const {
    if (chosen) {
      for (int i = queries.begin; i < queries.end; ++i, scores += keys.size()) {
        int hidden = keys.begin;  // keys before it are done
        each_shown(i, keys, mask, [&](attention::Span shown) {
          std::fill(scores + hidden - keys.begin, scores + shown.begin - keys.begin, nothing);
          hidden = shown.end;
        });
        std::fill(scores + hidden - keys.begin, scores + keys.size(), nothing);
      }
      return;
    }
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
  // Calls visit(span) for the parts of `keys` in the blocks that a query sees, in rising order.
  template <class Visit>
  void each_shown(int query, attention::Span keys, const attention::Mask& mask, const Visit& visit) const {
    const auto show = [&](attention::Span block) {
      const attention::Span shown{std::max(block.begin, keys.begin), std::min(block.end, keys.end)};
      if (!shown.empty()) visit(shown);
    };
    const int32_t* first_keys = chosen.of_row(query);
    for (int i = 0; i < chosen.choice.others && first_keys[i] >= 0; ++i)
      show({first_keys[i], first_keys[i] + chosen.choice.size});
    show(chosen.choice.own(mask, query));
  }
  attention::BlockList of_query(int query, const attention::Mask& mask) const {
    return blocks.keys_of(list, mask.listed_place_of(query) / blocks.size);
  }
};

}  // namespace tessera::cpu

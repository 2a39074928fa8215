#include "kernels/cpu/choose_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/view.h"

namespace tessera::cpu {

using attention::Choice;
using attention::Mask;
using attention::Span;

namespace {

// Sums in the order of the kernels for GPUs: from the first element to the last, with one rounding each
float product(const float* x, const float* y, int64_t D) {
  float sum = 0;
  for (int64_t d = 0; d < D; ++d) sum = std::fma(x[d], y[d], sum);
  return sum;
}

}  // namespace

void mean_of_keys(const View<const float>& k, int64_t begin, int64_t size, int64_t D, float* mean) {
  std::fill_n(mean, D, 0.0f);
  for (int64_t row = begin; row < begin + size; ++row)
    for (int64_t d = 0; d < D; ++d) mean[d] += k.row_begin(row)[d];
  for (int64_t d = 0; d < D; ++d) mean[d] /= static_cast<float>(size);
}

void choose_slots(const float* query, const float* means, int64_t D, int first, int count, int others,
                  int32_t* chosen) {
  struct Scored {
    float score;
    int32_t slot;
  };
  Scored largest[attention::kMostChosen];
  int kept = 0;
  for (int slot = first; slot < first + count; ++slot) {
    float score = product(query, means + slot * D, D);
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
    if (kept == others && (others == 0 || !(score > largest[others - 1].score))) continue;
    int place = kept < others ? kept++ : others - 1;
    for (; place > 0 && score > largest[place - 1].score; --place) largest[place] = largest[place - 1];
    largest[place] = {score, slot};
  }
  std::sort(largest, largest + kept, [](const Scored& a, const Scored& b) { return a.slot < b.slot; });
  for (int i = 0; i < others; ++i) chosen[i] = i < kept ? largest[i].slot : -1;
}

ChosenBlocks::ChosenBlocks(const AttentionPlan& plan, const Heads& q, const Heads& k,
                           const MaskTables& tables, const Tensor& workspace)
    : heads_(plan.shape.heads), tokens_(plan.shape.tokens) {
  const AttentionShape& s = plan.shape;
  if (!s.mask.choice) return;
  const Choice choice = attention::choice_of(attn_problem(plan, {}, tables));
  const attention::ChoiceWorkspace own = choice_of(plan, workspace);
  chosen_ = {choice, own.first_keys};
  const int64_t D = s.head_dim, group = s.group();
  const Mask of_first = mask_of(plan, tables);
  for (int64_t b = 0; b < s.batch; ++b) {
    const Mask mask = of_first.of_sequence(b);
#pragma omp parallel for
    for (int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
      const View<const float> keys = heads_of<const float>(k).one_head(b, kv_head);
      for (int key = 0; key < mask.keys; ++key) {
        const Choice::Block block = choice.block_of(mask, key);
        if (block.choosable && block.keys.begin == key)
          mean_of_keys(keys, key, choice.size, D, own.means + (kv_head * own.slots + key / choice.size) * D);
      }
    }
#pragma omp parallel for collapse(2) schedule(dynamic, 16)
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int query = 0; query < mask.queries; ++query) {
        const Span seen = mask.keys_of(query);
        const int first = choice.first_slot(seen);
        int32_t* chosen = own.first_keys + ((b * s.heads + h) * s.tokens + query) * choice.others;
        choose_slots(heads_of<float>(q).one_head(b, h).row_begin(query),
                     own.means + h / group * own.slots * D, D, first, choice.candidates(seen), choice.others,
                     chosen);
        for (int i = 0; i < choice.others; ++i)
          if (chosen[i] >= 0) chosen[i] = seen.begin + (chosen[i] - first) * choice.size;
      }
    }
  }
}

attention::Chosen ChosenBlocks::of_head(int64_t b, int64_t head) const {
  attention::Chosen chosen = chosen_;
  if (chosen) chosen.first_keys += (b * heads_ + head) * tokens_ * chosen.choice.others;
  return chosen;
}

}  // namespace tessera::cpu

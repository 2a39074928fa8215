// Which blocks of keys the queries of a mixture of blocks choose (AttnChoice of attention.h).
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/base/view.h"

namespace tessera::cpu {

// What was chosen, by call; none of a plan without a choice
class ChosenBlocks {
 public:
  ChosenBlocks() = default;
  // Computes the choice, to the beginning of the plan's workspace
  ChosenBlocks(const AttentionPlan& plan, const Heads& q, const Heads& k, const MaskTables& tables,
               const Tensor& workspace);

  // The rows of a query head of a sequence
  attention::Chosen of_head(int64_t b, int64_t head) const;

 private:
  attention::Chosen chosen_ = {};
  int64_t heads_ = 0, tokens_ = 0;
};

// The rest of a plan's workspace
inline char* behind_choice(const AttentionPlan& plan, const Tensor& workspace) {
  return workspace.as<char>() + plan.choice_bytes;
}

// The mean of keys begin to begin + size - 1 of a head, to mean [D]
void mean_of_keys(const View<const float>& k, int64_t begin, int64_t size, int64_t D, float* mean);

// Of the blocks that begin in slots first to first + count - 1, whose means are
// means [slots, D], those that a query chooses, as rising slots; -1 behind the last of `others`
void choose_slots(const float* query, const float* means, int64_t D, int first, int count, int others,
                  int32_t* chosen);

}  // namespace tessera::cpu

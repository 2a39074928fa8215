// Which blocks of keys the queries of a mixture of blocks choose (AttnChoice of attention.h).
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/base/view.h"

namespace tessera::cpu {

// The chosen blocks of a call; none if the plan has no choice
class ChosenBlocks {
 public:
  // Makes the choice. It is stored at the beginning of `workspace`, which has to live as long as this object.
  ChosenBlocks(const AttentionPlan& plan, const Heads& q, const Heads& k, const MaskTables& tables,
               const Tensor& workspace);

  // The chosen blocks of query head `head` of sequence b
  attention::Chosen of_head(int64_t b, int64_t head) const;

 private:
  attention::Chosen chosen_ = {};
  int64_t heads_ = 0, tokens_ = 0;
};

// The part of the workspace after the choice
inline char* behind_choice(const AttentionPlan& plan, const Tensor& workspace) {
  return workspace.as<char>() + plan.choice_bytes;
}

// Writes the mean of the keys begin to begin + size - 1 of a head to mean [D].
void mean_of_keys(const View<const float>& k, int64_t begin, int64_t size, int64_t D, float* mean);

// Chooses `others` of the blocks in the slots first to first + count - 1, or all if there are fewer. `means`
// [slots, D] has the means of the blocks. Writes the slots of the chosen ones to `chosen` [others], rising,
// and -1 to its remaining entries.
void choose_slots(const float* query, const float* means, int64_t D, int first, int count, int others,
                  int32_t* chosen);

}  // namespace tessera::cpu

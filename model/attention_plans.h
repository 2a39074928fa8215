// AttentionPlans: how each block of a model attends. Blocks of the same kind share a plan.
#pragma once

#include <optional>
#include <vector>

#include "kernels/attention/decode.h"
#include "model/block_kinds.h"
#include "model/sparse_lists.h"

namespace tessera {

class AttentionPlans {
 public:
  AttentionPlans() = default;
  AttentionPlans(const AttentionPlan& of_all) : distinct_{{.plan = of_all, .decode = {}}} {}
  // Each block has its own window and sparse blocks, in place of those of `request`. A prompt that begins
  // within a sparse block is decoded: all of its tokens read the text's cache. Error: as choose_attention().
  AttentionPlans(const BlockKinds& kinds, const AttentionRequest& request, const SparseLists& sparse = {});
  // Plans for one new token of each sequence over a cache. Error: as choose_decode().
  struct DecodeRequest {
    DecodeShape shape;
    DType dtype;
    DeviceTraits device;
  };
  static AttentionPlans decoding(const BlockKinds& kinds, const DecodeRequest& request,
                                 const SparseLists& sparse = {});

  const AttentionPlan& of(size_t layer) const { return at(layer).plan; }
  const std::optional<DecodePlan>& decode_of(size_t layer) const { return at(layer).decode; }

  // The same for all blocks
  int64_t batch() const { return at(0).plan.shape.batch; }
  int64_t tokens() const { return at(0).plan.shape.tokens; }
  int64_t rows() const { return batch() * tokens(); }  // N
  AttentionKind kind() const { return at(0).plan.kind; }
  DType dtype() const { return at(0).plan.dtype; }
  int64_t forward_workspace_bytes() const;  // enough for every block

 private:
  struct Plan {
    AttentionPlan plan;
    std::optional<DecodePlan> decode;
  };
  const Plan& at(size_t layer) const { return distinct_[of_block_.empty() ? 0 : of_block_[layer]]; }
  template <class Choose>  // returns a Plan for the spec of each kind
  AttentionPlans(const BlockKinds& kinds, Choose&& choose);

  std::vector<Plan> distinct_;
  std::vector<size_t> of_block_;  // the index of each block's plan; empty: all have the first one
};

}  // namespace tessera

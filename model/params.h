// Params: the weights of a transformer. The same struct holds their gradients.
//
// for_each_param() is the single list of parameters: a walk over the parts' visits. Allocation, initial
// values, weight decay, checkpoints and gradient checks go by it.
//
// Parameters are stored in buckets: one flat tensor for each block, and one for the parameters outside the
// blocks. A bucket is the unit of clearing, reduction between ranks, update and gathering. Parameters with
// weight decay come first, then the others; each begins at a multiple of kParamAlignment elements, and the
// gaps stay zero.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "model/attention.h"
#include "model/mlp.h"
#include "model/norm.h"

namespace tessera {

struct BlockParams {
  NormWeights norm1;
  AttentionWeights attention;
  NormWeights norm2;
  MlpWeights mlp;
};

struct Params {
  Tensor token_table;     // [padded V, C]
  Tensor position_table;  // [context, C]; none unless positions are learned
  std::vector<BlockParams> blocks;
  NormWeights norm;
  Tensor head_weight;  // [padded V, C]; none if the logits use the token table

  std::vector<Tensor> buckets;  // the tensors above are views of these: see ParamLayout

  const Tensor& classifier() const { return head_weight ? head_weight : token_table; }
};
using Grads = Params;

inline constexpr const char *kTokenTable = "token_table", *kPositionTable = "position_table",
                            *kHead = "head.weight";

// Calls visit(ParamInfo, Tensor&) for every parameter, in the order of the forward. P is Params or const
// Params.
template <class P, class Visit>
void for_each_param(P& params, const ModelConfig& config, Visit&& visit) {
  const int64_t C = config.channels, V = config.padded_vocab(), padding = V - config.vocab_size;
  const ParamVisitor outside(visit, "");
  outside.matrix(kTokenTable, {V, C}, Init::kNormal, params.token_table, padding);
  if (config.positions == Positions::kLearned)
    outside.matrix(kPositionTable, {config.context, C}, Init::kNormal, params.position_table);
  for (size_t l = 0; l < params.blocks.size(); ++l) {
    auto& block = params.blocks[l];
    const ParamVisitor inside(visit, "blocks." + std::to_string(l) + ".", static_cast<int64_t>(l));
    visit_norm_weights(block.norm1, config, inside.below("norm1"));
    visit_attention_weights(block.attention, config, inside.below("attention"));
    visit_norm_weights(block.norm2, config, inside.below("norm2"));
    visit_mlp_weights(block.mlp, config, inside.below("mlp"));
  }
  visit_norm_weights(params.norm, config, outside.below("norm"));
  if (!config.tied) outside.matrix(kHead, {V, C}, Init::kNormal, params.head_weight, padding);
}

inline constexpr int64_t kParamAlignment = 128;  // elements: 256 bytes in bf16, as Arena::kAlignment

struct ParamBucket {
  std::string name;  // "embeddings and final norm", "block 3"
  int64_t decayed;   // elements before this decay, the others do not
  int64_t elements;  // a multiple of kParamAlignment times the number of parts
};
struct ParamPlace {
  ParamInfo info;
  size_t bucket;
  int64_t first;  // element of the bucket
};

// The place of every parameter. Buckets can be split into `parts` equal parts, one for each rank; the places
// do not depend on it.
struct ParamLayout {
  static constexpr size_t kOutside = 0;  // the bucket of the parameters outside the blocks
  static size_t bucket_of_block(int64_t layer) { return static_cast<size_t>(layer) + 1; }

  ParamLayout(const ModelConfig& config, int64_t parts);
  Tensor view(const std::vector<Tensor>& buckets, const ParamPlace& place) const;
  Params params(const ModelConfig& config, std::vector<Tensor> buckets) const;  // views of them

  std::vector<ParamPlace> places;  // in the order of for_each_param
  std::vector<ParamBucket> buckets;
};

// `kind` leads the buckets' names in the memory report, as in "weights block 3".
std::vector<Tensor> allocate_buckets(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                                     const ParamLayout& layout, int64_t parts = 1);  // one part of each
Params allocate_params(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                       const ModelConfig& config, int64_t parts = 1);

// Takes the values of one parameter, fp32 on the host.
using ParamSink = std::function<void(const ParamPlace& place, const Tensor& values)>;

}  // namespace tessera

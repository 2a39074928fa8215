// Params: the weights of a transformer. The same struct holds their gradients.
//
// for_each_param() is the only list of parameters: it goes through the weights of all stages. Allocation,
// initial values, weight decay, checkpoints and gradient checks use it.
//
// Parameters are stored in buckets, each of which is a flat tensor: one for each block, one for the tables,
// and one for the head with the final norm. If the head is the token table, it is in the bucket of the
// tables. A bucket is the unit of clearing, reduction between ranks, update and gathering. In a bucket,
// parameters with weight decay come first, then the others, and frozen ones last. Each begins at a multiple
// of kParamAlignment elements, and the gaps stay zero. Gradients, moments and masters exist only for the
// trained elements.
//
// A store may have matrices in a stored form (StorageRule; store/stored_format.h). They lie in a second
// tensor of the bucket. Frozen matrices have only these values; trained matrices have them in addition to
// their weights.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "model/attention.h"
#include "model/block_kinds.h"
#include "model/experts.h"
#include "model/fp8_config.h"
#include "model/freeze.h"
#include "model/mlp.h"
#include "model/norm.h"

namespace tessera {

struct BlockParams {
  NormWeights norm1;  // this and norm2: only if BlockSpec::norms_before()
  AttentionWeights attention;
  NormWeights norm1_after;  // this and norm2_after: only if BlockSpec::norms_after()
  NormWeights norm2;
  MlpWeights mlp;          // of blocks without experts
  ExpertsWeights experts;  // of the others
  NormWeights norm2_after;
};

struct TableParams {
  Tensor token_table;          // [padded V, C]
  Tensor position_table;       // [context, C]; none unless positions are learned
  NormWeights embedding_norm;  // only with model.norm_embeddings
};

struct HeadParams {
  NormWeights norm;
  Tensor head_weight;  // [padded V, C]; none if the logits use the token table
  Tensor tied_weight;  // the token table, if the logits use it

  const Tensor& classifier() const { return head_weight ? head_weight : tied_weight; }
};

struct Params : TableParams, HeadParams {
  std::vector<BlockParams> blocks;
  std::vector<Tensor> buckets;  // the tensors above are views of these: see ParamLayout
};
using Grads = Params;

inline constexpr const char *kTokenTable = "token_table", *kPositionTable = "position_table",
                            *kHead = "head.weight";

// Calls visit() for every weight of a block: for each stage its linear layers, then its vectors.
using ParamVisit = std::function<void(const ParamInfo&, Tensor&)>;
void visit_block_weights(BlockParams& block, const BlockKind& kind, int64_t layer, const ParamVisit& visit);

// Calls visit() for every parameter, in the order of the forward. Adapters come last, so all other parameters
// have the same place with and without adapters.
void for_each_param(Params& params, const ModelConfig& config, const BlockKinds& kinds,
                    const ParamVisit& visit);
void for_each_param(Params& params, const ModelConfig& config, const ParamVisit& visit);
void for_each_param(const Params& params, const ModelConfig& config,
                    const std::function<void(const ParamInfo&, const Tensor&)>& visit);

inline constexpr int64_t kParamAlignment = 128;  // elements: 256 bytes in bf16, as Arena::kAlignment
inline int64_t padded(int64_t elements) {
  return (elements + kParamAlignment - 1) / kParamAlignment * kParamAlignment;
}

// Whether, and how, a parameter has a stored form
enum class StoredAs : uint8_t {
  kNo,
  kCopied,  // it has copies that are made of the whole matrix; the layout has no place for them
  kOnly,    // it has only the stored form
  kBeside,  // it has the stored form beside its other values
};

struct ParamBucket {
  std::string name;                 // "embeddings and final norm", "block 3"
  int64_t matrices = 0;             // the elements before this one are trained matrices, except routers
  int64_t decayed = 0;              // the elements before this one have weight decay, the others do not
  int64_t trained = 0;              // the elements before this are trained; a multiple of kParamAlignment x
                                    // parts
  int64_t elements = 0;             // of the weights, without those that are kOnly
  int64_t stored_elements = 0;      // that are kOnly or kBeside; a multiple of kParamAlignment x parts
  StoredAs stored = StoredAs::kNo;  // of its matrices that have a stored form in the layout: kOnly or kBeside
  int64_t not_matrices() const { return trained - matrices; }  // routers and vectors
};
struct ParamPlace {
  ParamInfo info;
  size_t bucket;
  int64_t first;  // its first element in the bucket
  // The index in ParamLayout::places. It is the same in layouts with other frozen parameters, or without the
  // adapters
  size_t index;
  bool trained = true;
  StoredAs stored = StoredAs::kNo;
  int64_t stored_first = 0;  // its first element in the bucket's second tensor, which has the stored forms

  // Its elements among the `count` elements of the bucket from `begins` on; first counts from `begins`
  struct Range {
    int64_t first, count;
  };
  Range within(int64_t begins, int64_t count) const {
    const int64_t from = std::clamp<int64_t>(first - begins, 0, count),
                  end = std::clamp<int64_t>(first + info.shape.numel() - begins, 0, count);
    return {.first = end > from ? from : 0, .count = end - from};
  }
};

// Which matrices are stored in FP8: the frozen ones; with `trained` all (then nothing is frozen). Two kinds
// are copied to FP8 instead: matrices of a block whose backward reads W_O itself, and a table that is also
// the head.
struct StorageRule {
  Fp8Config config = {};
  bool trained = false;
  bool frozen_blocks = false;  // all frozen matrices of blocks, except routers, whatever `config` says
  bool experts_only = false;   // of these only the matrices of experts
  StoredAs of(const ParamPlace& place, const ModelConfig& model) const;
};

// The place of every parameter. The trained elements of a bucket can be split into `parts` equal parts, one
// for each rank, and so can the frozen elements. If nothing is frozen, the places do not depend on `parts`.
struct ParamLayout {
  static constexpr size_t kTables = 0;  // the bucket of the tables
  size_t head = kTables;                // the bucket of the head: the last one, or that of the tables
  bool head_is_tied() const { return head == kTables; }
  static size_t bucket_of_block(int64_t layer) { return static_cast<size_t>(layer) + 1; }
  bool is_block(size_t bucket) const { return bucket != kTables && bucket != head; }

  ParamLayout(const ModelConfig& config, int64_t parts, const Freeze& freeze = {},
              const StorageRule& storage = {});
  Tensor trained(const std::vector<Tensor>& all, size_t bucket) const {  // of the weights; may be empty
    return all[bucket].rows(0, buckets[bucket].trained);
  }
  Tensor view(const std::vector<Tensor>& buckets, const ParamPlace& place) const;
  // Views of these buckets. Parameters that are kOnly have no view.
  Params params(const ModelConfig& config, std::vector<Tensor> buckets) const;
  // Views of buckets of trained elements. A frozen parameter has no tensor, except a frozen norm: the kernels
  // of norms always write gradients, which then go to `discarded`, a tensor of discarded_elements().
  Grads gradients(const ModelConfig& config, std::vector<Tensor> buckets, const Tensor& discarded) const;
  int64_t discarded_elements() const;
  // The matrices of the adapter of a linear layer, found by the layer's weight. nullopt: it has no adapter
  struct Adapter {
    const ParamPlace *a, *b;
  };
  std::optional<Adapter> adapter_of(const ParamPlace& weight) const;

  BlockKinds kinds;
  std::vector<ParamPlace> places;  // in the order of for_each_param
  std::vector<ParamBucket> buckets;

 private:
  void place_stored(int64_t parts);
};

// `kind` begins the names of the buckets in the memory report, as in "weights block 3".
std::vector<Tensor> allocate_buckets(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                                     const ParamLayout& layout, int64_t parts = 1);
// Allocates one of `parts` parts of the trained elements of each bucket; an empty tensor if a bucket has
// none.
std::vector<Tensor> allocate_trained(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                                     const ParamLayout& layout, int64_t parts = 1);

// The number of parameters of `config` that are frozen, and the FLOPs a token that this saves: 2 for each,
// since the product for its gradient is left out
int64_t frozen_parameters(const ModelConfig& config, const Freeze& freeze);
double frozen_flops_per_token(const ModelConfig& config, const Freeze& freeze);

// "embeddings: 38.6M of 124M parameters; ...". For a model with adapters: how many parameters they have, and
// how the others are stored
std::string frozen_text(const ModelConfig& config, const Freeze& freeze, BaseForm base = BaseForm::kAuto,
                        bool base_of_experts = false);

// Receives the values of one parameter, fp32 on the host.
using ParamSink = std::function<void(const ParamPlace& place, const Tensor& values)>;

}  // namespace tessera

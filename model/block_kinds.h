// BlockKinds: what the blocks of a model are made of. Blocks with equal specs are of one kind. For each kind,
// the stages and their weights are listed once, from its spec. The layout of the parameters carries these
// lists (ParamLayout::kinds).
#pragma once

#include <span>
#include <vector>

#include "model/block_spec.h"
#include "model/keep.h"
#include "model/linear.h"

namespace tessera {

struct StageRow;  // stages.h
struct BlockParams;
struct BlockSaved;

// A linear layer of a stage, and where its tensors are
struct LinearOfStage {
  Linear linear;
  const LinearWeights& (*weights)(const BlockParams&);
  const Tensor& (*adapter)(const BlockSaved&);  // what its adapter saves, see LoraForward
  Stage stage = {};
  size_t index = 0;  // among all linear layers of the block
};

// A weight of a stage that belongs to no linear layer and is no matrix: that of a norm, or attention's sinks
struct VectorOfStage {
  std::string name;  // in the block: "norm1.weight"
  int64_t size;
  Init init;
  const Tensor& (*tensor)(const BlockParams&);
  ParamPart part = ParamPart::kNorms;
  Stage stage = {};
};

struct BlockKind {
  BlockKind(const ModelConfig& config, const BlockSpec& spec);

  BlockSpec spec;
  std::vector<const StageRow*> stages;  // the stages that the block has, in their order
  std::vector<LinearOfStage> linears;   // of all stages, in their order, and so are vectors
  std::vector<VectorOfStage> vectors;

  // The stage before or after a stage; null: there is none
  const StageRow* before(Stage stage) const;
  const StageRow* after(Stage stage) const;
  std::span<const LinearOfStage> linears_of(Stage stage) const;
  const LinearOfStage* only_linear(Stage stage) const;  // null: the stage has none, or several
  // Whether a forward keeps what the stage saves, by the stage's words (StageRow::dropped_by). The output of
  // the last stage is always kept, except with Keep::nothing(), since it is the next block's input.
  bool keeps(Keep keep, Stage stage) const;
};

class BlockKinds {
 public:
  explicit BlockKinds(const ModelConfig& config);

  const BlockKind& of(size_t layer) const { return distinct_[of_block_[layer]]; }
  const std::vector<BlockKind>& distinct() const { return distinct_; }
  const std::vector<size_t>& of_block() const { return of_block_; }  // for each block its index in distinct()

 private:
  std::vector<BlockKind> distinct_;
  std::vector<size_t> of_block_;
};

}  // namespace tessera

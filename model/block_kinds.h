// BlockKinds: what the blocks of a model are made of. Blocks with equal specs are of one kind. The stages of
// a kind and their weights are listed once, from that spec; the layout of the parameters carries the lists
// (ParamLayout::kinds).
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

// A linear layer of a stage: where its tensors are
struct LinearOfStage {
  Linear linear;
  const LinearWeights& (*weights)(const BlockParams&);
  const Tensor& (*adapter)(const BlockSaved&);  // what its adapter keeps, see LoraForward
  Stage stage = {};
  size_t index = 0;  // among all of the block
};

// A weight of a stage that is no matrix, and of no linear layer: a norm's, or attention's sinks
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
  std::vector<const StageRow*> stages;  // those that a block has, in their order
  std::vector<LinearOfStage> linears;   // of all stages, in their order, as the next
  std::vector<VectorOfStage> vectors;

  // The neighbour of a stage; null: it is the first or the last one
  const StageRow* before(Stage stage) const;
  const StageRow* after(Stage stage) const;
  std::span<const LinearOfStage> linears_of(Stage stage) const;
  const LinearOfStage* only_linear(Stage stage) const;  // null: the stage has none, or several
  // By the words of the stage, see StageRow::dropped_by. But for Keep::nothing(), what the last stage writes
  // is kept: it is the next block's input.
  bool keeps(Keep keep, Stage stage) const;
};

class BlockKinds {
 public:
  explicit BlockKinds(const ModelConfig& config);

  const BlockKind& of(size_t layer) const { return distinct_[of_block_[layer]]; }
  const std::vector<BlockKind>& distinct() const { return distinct_; }
  const std::vector<size_t>& of_block() const { return of_block_; }  // by block: its place in distinct()

 private:
  std::vector<BlockKind> distinct_;
  std::vector<size_t> of_block_;
};

}  // namespace tessera

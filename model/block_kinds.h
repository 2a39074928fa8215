// BlockKinds: what the blocks of a model are made of. Blocks with equal specs are of one kind. Its list of
// stages is made once, from that spec; the layout of the parameters carries it (ParamLayout::kinds).
#pragma once

#include <vector>

#include "model/block_spec.h"
#include "model/keep.h"

namespace tessera {

struct StageRow;  // stages.h

struct BlockKind {
  explicit BlockKind(const BlockSpec& spec);

  BlockSpec spec;
  std::vector<const StageRow*> stages;  // those that a block has, in their order

  // The neighbour of a stage; null: it is the first or the last one
  const StageRow* before(Stage stage) const;
  const StageRow* after(Stage stage) const;
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

// SparseLists: the lists of a model's sparse patterns (kernels/attention/blocks.h) on the device. They
// depend only on the length of a sequence, and lists for a longer sequence serve a shorter one as well. So
// the lists of the longest sequence are made once, for all blocks and steps.
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/base/arena.h"
#include "kernels/stream.h"
#include "model/config.h"

namespace tessera {

// The blocks of queries that the ranks of a context have (train/session/context_deal.h). Queries of longer
// and of shorter sequences are dealt alike, as far as these go.
struct DealtBlocks {
  int64_t ranks = 1, rank = 0;
  int64_t size = 0;  // tokens of a block; the blocks of every pattern are multiples of it
  // [blocks of a rank, ranks]: which block of the sequence it is. Those behind the last token are padding.
  std::vector<int64_t> blocks = {};
};

class SparseLists {
 public:
  SparseLists() = default;
  // Makes lists for sequences of up to `tokens` tokens, or for a rank's share of them. A pattern that shows
  // all of these tokens gets no lists. Lists of all ranks take equal memory.
  SparseLists(const Stream& stream, Arena& arena, const ModelConfig& model, int64_t tokens,
              const DealtBlocks& dealt = {});

  // The sizes of the lists for a call whose queries are the tokens `offset` to `end` - 1 of a sequence, or,
  // of dealt queries, a rank's share of the tokens before `end`. Size 0 means no lists: the pattern shows all
  // of the first `end` tokens, or queries choose their blocks. Error: `end` is above the constructor's
  // `tokens`.
  BlockShape shape_of(const SparsePattern& pattern, int64_t offset, int64_t end) const;
  const Tensor& numbers_of(const SparsePattern& pattern) const;  // int32, see MaskTables; none: no lists

 private:
  struct Listed {
    SparsePattern pattern;
    BlockShape shape;
    Tensor numbers;
  };
  const Listed* find(const SparsePattern& pattern) const;

  int64_t tokens_ = 0, ranks_ = 1;
  std::vector<Listed> listed_;
};

}  // namespace tessera

// SparseLists: the lists of a model's sparse patterns (kernels/attention/blocks.h) on the device. They depend
// on the length of a sequence only, and a shorter one has the first of a longer one's: those of the longest
// are made once, for all blocks and steps.
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/base/arena.h"
#include "kernels/stream.h"
#include "model/config.h"

namespace tessera {

class SparseLists {
 public:
  SparseLists() = default;
  // Of sequences of up to so many tokens. A pattern that shows all of these has no lists.
  SparseLists(const Stream& stream, Arena& arena, const ModelConfig& model, int64_t tokens);

  // Of the mask of a call, whose queries are the tokens of a sequence from `offset` to `end`; without lists
  // where the pattern hides nothing of them. Error: a sequence longer than those that were planned for.
  BlockShape shape_of(const SparsePattern& pattern, int64_t offset, int64_t end) const;
  const Tensor& numbers_of(const SparsePattern& pattern) const;  // int32, see MaskTables; none: no lists

 private:
  struct Listed {
    SparsePattern pattern;
    BlockShape shape;
    Tensor numbers;
  };
  const Listed* find(const SparsePattern& pattern) const;

  int64_t tokens_ = 0;
  std::vector<Listed> listed_;
};

}  // namespace tessera

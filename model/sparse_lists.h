// SparseLists: the lists of a model's sparse patterns (kernels/attention/blocks.h) on the device. They
// depend only on the length of a sequence, and lists for a longer sequence serve a shorter one as well. So
// the lists of the longest sequence are made once, for all blocks and steps.
#pragma once

#include "kernels/attention/choose.h"
#include "kernels/base/arena.h"
#include "kernels/stream.h"
#include "model/config.h"

namespace tessera {

class SparseLists {
 public:
  SparseLists() = default;
  // Makes lists for sequences of up to `tokens` tokens. A pattern that shows all of these gets no lists.
  SparseLists(const Stream& stream, Arena& arena, const ModelConfig& model, int64_t tokens);

  // The sizes of the lists for a call whose queries are the tokens `offset` to `end` - 1 of a sequence. Size
  // 0 means no lists: the pattern shows all of the first `end` tokens, or queries choose their blocks. Error:
  // `end` is above the constructor's `tokens`.
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

// Offload of activations: from the end of a block's forward until shortly before its backward, what it keeps
// lies in host memory. That is so for the first K blocks, whose activations wait longest: all, unless told.
// The others have theirs on the device.
//
// What a block keeps is its input and what train.recompute leaves of its stages' results (visit_kept()). On
// the device block l < K has the slot l mod 2; inputs take turns in three places, since a block writes the
// next one's.
//   forward    Block l waits until block l - 2 is copied out of its slot. At its end it is copied out itself,
//              while block l + 1 computes.
//   backward   The last two of the K are still in their slots, and are never copied. At the end of block l,
//              block l - 2 is fetched into its slot, while block l - 1 computes.
// Each direction has a queue of its own. All copies of a micro-batch are waited for before it ends, so the
// slots may lie elsewhere in the next one.
#pragma once

#include <memory>
#include <vector>

#include "model/saved.h"

namespace tessera {

class ActivationOffload {
 public:
  // Allocates the host's part, for model.keep. K: model.offloaded_blocks. `poison`: see CopyQueue.
  ActivationOffload(const Stream& stream, Arena& host, const Model& model, Poison poison);

  // The tensors of the next micro-batch, by allocate_saved()
  void use(Saved& saved, const Model& model);
  // Around the forward of each block of the model in turn, and around its backward, which begins with
  // recomputation
  void begin_forward(size_t layer);
  void end_forward(size_t layer);
  void begin_backward(size_t layer);
  void end_backward(size_t layer);

 private:
  struct Block {
    std::vector<Tensor> host;
    std::vector<Copy> out, back;
    int64_t out_number = 0, back_number = 0;  // in their queues
  };
  size_t blocks_;              // K
  std::vector<Block> copied_;  // the first K blocks but for the last kActivationSlots of them
  std::unique_ptr<CopyQueue> out_, back_;
};

}  // namespace tessera

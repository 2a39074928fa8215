// Offload of activations: from the end of a block's forward until shortly before its backward, what the block
// saves lies in host memory. This holds for the first K blocks, whose activations wait longest. By default
// these are all blocks. The others keep theirs on the device.
//
// What a block saves is its input and those results of its stages that train.recompute does not drop
// (visit_kept()). On the device, block l < K uses the slot l mod 2. Inputs alternate between three places,
// since a block writes the input of the next one.
//   forward    Block l waits until block l - 2 is copied out of its slot. At its end it is copied out itself,
//              while block l + 1 computes.
//   backward   The last two of the K are still in their slots, and are never copied. At the end of block l,
//              block l - 2 is fetched into its slot, while block l - 1 computes.
// Each direction has a queue of its own. A micro-batch ends after all of its copies are done, so the slots of
// the next one may lie elsewhere.
#pragma once

#include <memory>
#include <vector>

#include "model/saved.h"

namespace tessera {

class ActivationOffload {
 public:
  // Allocates the host's part, for the tensors that model.keep keeps. K is model.offloaded_blocks. `poison`:
  // see CopyQueue.
  ActivationOffload(const Stream& stream, Arena& host, const Model& model, Poison poison);

  // Sets the tensors of the next micro-batch, made by allocate_saved().
  void use(Saved& saved, const Model& model);
  // Called around the forward of each block in turn, and around its backward, of which recomputation is the
  // first part
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

// Which key block a CTA of the backward works on, and why CTAs that
// add to dQ in a fixed order do not deadlock.
//
// CTAs take tickets as they start, and within a head tickets go to key blocks downwards. Before it adds to
// query tile i, key block j waits until all blocks above j that see tile i have added. Those have smaller
// tickets: so a CTA waits only for CTAs that have started, the running CTA with the smallest ticket waits for
// none, and by induction every CTA ends.
//
// There is little to wait for. A causal block j meets tile i in its step i - j (in units of
// kBlockK), one after block j + 1 has met it. Without a mask block j meets every tile in the same
// step as block j + 1 and has to lag behind it: there, and where the mask may be any, several heads
// take turns with their tickets, so that block j also starts later.
//
// Query heads that share K and V are walked one after another by the same CTA, in the same order by all: a
// turn is a turn of (query head, tile), and the induction stands.
#pragma once

#include "kernels/attention/sm80/backward_args.cuh"
#include "kernels/attention/sm80/mask.cuh"

namespace tessera::attention::sm80 {

struct KeyBlock {
  int index;
  int head_index, b, h;  // of K and V: head_index = b kv_heads + h

  template <MaskKind kMask>
  static __device__ __forceinline__ KeyBlock of(unsigned ticket, const BackwardArgs& a) {
    KeyBlock block;
    if constexpr (kMask != MaskKind::kCausal) {
      constexpr int kHeadsAtOnce = 8;
      const int first_head = static_cast<int>(ticket) / (kHeadsAtOnce * a.key_blocks) * kHeadsAtOnce;
      const int heads = min(kHeadsAtOnce, static_cast<int>(gridDim.x) / a.key_blocks - first_head);
      ticket -= first_head * a.key_blocks;
      block.index = a.key_blocks - 1 - ticket / heads;
      block.head_index = first_head + ticket % heads;
    } else {
      block.index = a.key_blocks - 1 - ticket % a.key_blocks;
      block.head_index = ticket / a.key_blocks;
    }
    block.b = block.head_index / a.kv_heads;
    block.h = block.head_index % a.kv_heads;
    return block;
  }
};

}  // namespace tessera::attention::sm80

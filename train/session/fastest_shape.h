// What "auto" means for train.micro_batch, train.recompute, train.mlp_chunk, parallel.shard,
// parallel.replicas and memory.offload: of the shapes that fit according to their plan, the one whose step is
// estimated to be the fastest (step_estimate.h).
#pragma once

#include <array>

#include "train/session/memory_limit.h"
#include "train/session/run_shape.h"

namespace tessera {

// Which fields of a shape this search sets
struct FreeFields {
  bool micro_batch = false, keep = false, mlp_chunk = false, shard = false, replicas = false, offload = false;

  bool any_but_micro_batch() const { return keep || mlp_chunk || shard || replicas || offload; }
};

// The values of mlp_chunk that are tried, in this order
inline constexpr std::array<int64_t, 4> kMlpChunks = {16384, 8192, 4096, 2048};

// `shape` with the free fields found; the others stay.
//   micro_batch  the largest that divides the sequences of a rank, fits 92% of the device (of a CPU 60%), and
//                has at most 65,536 tokens (of a CPU 1,024), above which a step gets no faster. Where one
//                sequence is longer, 1
//   mlp_chunk    0, unless nothing fits without a chunk: then the largest of kMlpChunks that fits
//   replicas     1, or on several machines one for each, if the ranks of a sequence are on one machine
//   offload      gradients and weights only where nothing fits without, or where a step is 10% faster
//   the others   what makes a step the fastest. Less recomputation, less that is split and less that is
//                offloaded comes first where a step is within 2%. All blocks are alike, unless a step is 1%
//                faster with two groups of blocks that keep, or offload, different activations
// What is offloaded fits the host's memory, too.
// If nothing fits that share of the device, what fits `limit`; if nothing does, what needs the least. An
// unknown limit: everything fits, with a micro-batch of 1.
RunShape fastest_shape(const RunShape& shape, const FreeFields& free, const DeviceTraits& device,
                       const MemoryLimit& limit);

}  // namespace tessera

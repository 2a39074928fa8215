// The workspace of the CPU's flash attention: each thread has a piece of it.
#pragma once

#include "kernels/attention/workspace.h"

namespace tessera::cpu {

// Another tile size changes the result at most by rounding.
struct FlashTile {
  int64_t queries = 64, keys = 64;
};

struct FlashForwardScratch {
  FlashForwardScratch(void* memory, FlashTile tile, int64_t head_dim) {
    attention::Carver carver(memory);
    scores = carver.take<float>(static_cast<size_t>(tile.queries * tile.keys));
    output = carver.take<float>(static_cast<size_t>(tile.queries * head_dim));
    softmax = carver.take<float>(static_cast<size_t>(2 * tile.queries));
    bytes = static_cast<int64_t>(carver.used());
  }

  float* scores;   // [queries, keys]: S, then P
  float* output;   // [queries, D]: O
  float* softmax;  // [queries]: a StreamingSoftmax each
  int64_t bytes;   // of one thread
};

struct FlashBackwardScratch {
  FlashBackwardScratch(void* memory, FlashTile tile, int64_t tokens) {
    attention::Carver carver(memory);
    probabilities = carver.take<float>(static_cast<size_t>(tile.queries * tile.keys));
    gradients = carver.take<float>(static_cast<size_t>(tile.queries * tile.keys));
    delta = carver.take<float>(static_cast<size_t>(tokens));
    bytes = static_cast<int64_t>(carver.used());
  }

  float* probabilities;  // [queries, keys]: P
  float* gradients;      // [queries, keys]: dP, then dS
  float* delta;          // [T]: rowsum(dY * Y)
  int64_t bytes;         // of one thread
};

}  // namespace tessera::cpu

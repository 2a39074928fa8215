// A mask as `./bench attention --masks` names it:
//   full, causal
//   window:N         causal, and of the keys that a query sees the last N alone
//   documents:N      causal within documents of N tokens, of which the last of a sequence may be shorter
//   blocks:W+G+R     causal, with sparse blocks of 128: of each the last W, the first G, R others at random
//   chosen:KxN       causal, and each query sees K blocks of N tokens: its own, and others that it chooses
//   documents:mixed  causal within documents of log-normal lengths of kMeanLength tokens on average, the same
//                    every time; where a sequence ends, so does a document
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/block_lists.h"

namespace tessera {

struct BenchMask {
  std::string name;
  AttnMask mask{};
  // On the host, [batch, tokens, 2], where mask.documents points; null: there are none
  std::shared_ptr<const std::vector<int32_t>> documents = nullptr;
  std::shared_ptr<const BlockLists> blocks = nullptr;  // likewise, of mask.blocks
};

inline constexpr double kMeanLength = 700, kSigmaOfLength = 1;  // sigma: of the logarithm of a length

// Error: no such mask, and those that there are.
BenchMask parse_mask(const std::string& name, int64_t batch, int64_t tokens);

}  // namespace tessera

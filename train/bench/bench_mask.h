// A mask as `./bench attention --masks` names it:
//   full, causal
//   window:N         causal, and a query sees only the last N keys of those
//   documents:N      causal within documents of N tokens; the last one of a sequence may be shorter
//   blocks:W+G+R     causal, with sparse blocks of 128: a block of queries sees the last W blocks, the
//                    first G, and R others at random
//   chosen:KxN       causal, and each query sees K blocks of N tokens: its own, and others that it chooses
//   documents:mixed  causal within documents of log-normal lengths, kMeanLength tokens on average and the
//                    same every time; a document ends where its sequence ends
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/block_lists.h"

namespace tessera {

struct BenchMask {
  std::string name;
  AttnMask mask{};
  // What mask.documents points to, on the host, [batch, tokens, 2]; null: there are no documents
  std::shared_ptr<const std::vector<int32_t>> documents = nullptr;
  std::shared_ptr<const BlockLists> blocks = nullptr;  // what mask.blocks points to, on the host; null: there
                                                       // are none
};

inline constexpr double kMeanLength = 700, kSigmaOfLength = 1;  // sigma is that of the logarithm of a length

// Error: there is no such mask; the message lists those that there are.
BenchMask parse_mask(const std::string& name, int64_t batch, int64_t tokens);

}  // namespace tessera

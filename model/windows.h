// Windows: how many tokens attention of each block sees (model.window), as a pattern that repeats over the
// blocks: "1024*5,full" is five blocks that see the last 1,024 tokens, then one that sees all, and so on.
//
// Method: Child et al., "Generating Long Sequences with Sparse Transformers", arXiv:1904.10509; Beltagy et
// al., "Longformer", arXiv:2004.05150.
#pragma once

#include "model/block_pattern.h"

namespace tessera {

struct WindowRun {
  using Value = int64_t;
  int64_t window = 0;  // a token sees the last so many, itself among them; 0: all tokens before it
  int64_t blocks = 1;  // that follow one another
  bool operator==(const WindowRun&) const = default;

  static void check(int64_t window);  // Error: it is negative
  static std::string text(int64_t window) { return std::to_string(window); }
};

using Windows = BlockPattern<WindowRun>;

}  // namespace tessera

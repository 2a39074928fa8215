// Windows: how many tokens attention of each block sees (model.window), as a pattern that repeats over the
// blocks: "1024*5,full" is five blocks that see the last 1,024 tokens, then one that sees all, and so on.
//
// Method: Child et al., "Generating Long Sequences with Sparse Transformers", arXiv:1904.10509; Beltagy et
// al., "Longformer", arXiv:2004.05150.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

class Windows {
 public:
  static constexpr int64_t kFull = 0;             // a token sees all tokens before it
  static constexpr int64_t kMostBlocks = 10'000;  // of a pattern
  struct Run {
    int64_t window = kFull;  // a token sees the last so many, itself among them
    int64_t blocks = 1;      // that follow one another
    bool operator==(const Run&) const = default;
  };

  constexpr Windows() = default;  // kFull in every block
  // The same window in every block
  explicit Windows(int64_t window) : Windows(std::vector<Run>{{.window = window}}) {}
  // Equal patterns become the same value: "512*2,512" is "512". Error: no run, a negative window, runs
  // without a block, more than kMostBlocks.
  explicit Windows(const std::vector<Run>& pattern);
  // The shortest pattern that gives these windows to as many blocks
  static Windows of_blocks(const std::vector<int64_t>& windows);

  // The pattern of a model with so many blocks, which may be fewer than it has
  Windows cut(int64_t blocks) const;

  int64_t at(size_t block) const;
  bool all_full() const { return runs_.empty(); }
  bool all_equal() const { return runs_.size() < 2; }
  int64_t pattern_blocks() const;  // before it repeats; 1 where all blocks are equal
  // Of so many blocks: each window, with the number of blocks that have it; kFull first, then rising
  std::vector<Run> counts(int64_t blocks) const;
  std::vector<Run> runs() const { return all_full() ? std::vector<Run>{{}} : runs_; }
  bool operator==(const Windows&) const = default;

 private:
  std::vector<Run> runs_;  // empty: full in all blocks; else neighbours differ
};

std::string text_of(const Windows& windows);  // "1024*5,full"

}  // namespace tessera

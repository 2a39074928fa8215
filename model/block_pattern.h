// BlockPattern: a value for each block of a model, as runs that repeat: "1024*5,full" is five blocks with one
// value, then one with another, and so on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// R: struct { Value value; int64_t blocks = 1; } of any names. R::check(value) refuses values, R::text(value)
// writes one. Value{} is written "full". An empty vector is a constant, so families may have patterns.
template <class R>
class BlockPattern {
 public:
  using Run = R;
  using Value = typename R::Value;
  static constexpr Value kFull = {};
  static constexpr int64_t kMostBlocks = 10'000;  // of a pattern

  constexpr BlockPattern() = default;  // kFull in every block
  explicit BlockPattern(const Value& of_all) : BlockPattern(std::vector<Run>{{of_all}}) {}
  // Equal patterns become the same value: "512*2,512" is "512". Error: no run, a value that R refuses, runs
  // without a block, more than kMostBlocks.
  explicit BlockPattern(const std::vector<Run>& pattern);
  // The shortest pattern that gives these values to as many blocks
  static BlockPattern of_blocks(const std::vector<Value>& values);

  // The pattern of a model with so many blocks, which may be fewer than it has
  BlockPattern cut(int64_t blocks) const;

  Value at(size_t block) const;
  bool all_full() const { return runs_.empty(); }
  bool all_equal() const { return runs_.size() < 2; }
  int64_t pattern_blocks() const;  // before it repeats; 1 where all blocks are equal
  // Of so many blocks: each value, with the number of blocks that have it; kFull first, then rising
  std::vector<Run> counts(int64_t blocks) const;
  std::vector<Run> runs() const { return all_full() ? std::vector<Run>{{}} : runs_; }
  bool operator==(const BlockPattern&) const = default;

 private:
  std::vector<Run> runs_;  // empty: full in all blocks; else neighbours differ
};

template <class R>
std::string text_of(const BlockPattern<R>& pattern);  // "1024*5,full"

}  // namespace tessera

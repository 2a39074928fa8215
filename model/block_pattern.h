// BlockPattern gives each block of a model a value. It is a list of runs that repeats over the blocks:
// "1024*5,full" is five blocks with 1024, one with "full", again five with 1024, and so on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// R is a run: an aggregate of a value, whose type is R::Value, and the number of blocks that have it.
// R::check(value) refuses invalid values, and R::text(value) writes a value. Value{} is written as "full".
template <class R>
class BlockPattern {
 public:
  using Run = R;
  using Value = typename R::Value;
  static constexpr Value kFull = {};
  static constexpr int64_t kMostBlocks = 10'000;  // before a pattern repeats

  constexpr BlockPattern() = default;  // kFull in every block
  explicit BlockPattern(const Value& of_all) : BlockPattern(std::vector<Run>{{of_all}}) {}
  // Patterns that give the same values compare equal: "512*2,512" becomes "512". Error: there is no run; R
  // refuses a value; a run has no block; there are more than kMostBlocks blocks.
  explicit BlockPattern(const std::vector<Run>& pattern);
  // The shortest pattern whose first values.size() blocks have these values
  static BlockPattern of_blocks(const std::vector<Value>& values);

  // The shortest pattern that gives a model of `blocks` blocks the same values
  BlockPattern cut(int64_t blocks) const;

  Value at(size_t block) const;
  bool all_full() const { return runs_.empty(); }
  bool all_equal() const { return runs_.size() < 2; }
  int64_t pattern_blocks() const;  // the blocks before the pattern repeats; 1 if all blocks are equal
  // Each value among the first `blocks` blocks, with the number of blocks that have it: first kFull, then
  // rising
  std::vector<Run> counts(int64_t blocks) const;
  std::vector<Run> runs() const { return all_full() ? std::vector<Run>{{}} : runs_; }
  bool operator==(const BlockPattern&) const = default;

 private:
  std::vector<Run> runs_;  // empty: full in all blocks; else neighbours differ
};

template <class R>
std::string text_of(const BlockPattern<R>& pattern);  // "1024*5,full"

}  // namespace tessera

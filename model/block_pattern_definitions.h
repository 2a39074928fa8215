// The functions of BlockPattern, for the files that define its kinds.
#pragma once

#include <algorithm>

#include "kernels/base/check.h"
#include "model/block_pattern.h"

namespace tessera {
namespace block_pattern {

// The number of values after which they repeat. The last repetition may be partial.
template <class Value>
size_t period_of(const std::vector<Value>& values) {
  size_t period = 1;
  const auto repeats = [&] {
    for (size_t i = period; i < values.size(); ++i)
      if (values[i] != values[i - period]) return false;
    return true;
  };
  while (!repeats()) ++period;
  return period;
}

}  // namespace block_pattern

template <class R>
BlockPattern<R>::BlockPattern(const std::vector<R>& pattern) {
  check(!pattern.empty(), "a pattern of blocks needs at least one");
  std::vector<Value> of_block;
  for (const auto& [value, blocks] : pattern) {
    R::check(value);
    check(blocks >= 1 && std::ssize(of_block) + blocks <= kMostBlocks,
          "a pattern must have 1 to {} blocks in all, found one of {} after {}", kMostBlocks, blocks,
          of_block.size());
    of_block.insert(of_block.end(), static_cast<size_t>(blocks), value);
  }
  // A pattern repeats whole, so a shorter one says the same if it divides this one.
  const size_t period = block_pattern::period_of(of_block);
  if (of_block.size() % period == 0) of_block.resize(period);
  for (const Value& value : of_block) {
    if (!runs_.empty()) {
      auto& [last, blocks] = runs_.back();
      if (last == value) {
        ++blocks;
        continue;
      }
    }
    runs_.push_back(R{value});
  }
  if (runs_.size() == 1 && of_block[0] == kFull) runs_.clear();
}

template <class R>
BlockPattern<R> BlockPattern<R>::of_blocks(const std::vector<Value>& values) {
  check(!values.empty(), "a pattern of blocks needs at least one");
  std::vector<R> pattern;
  for (size_t i = 0; i < block_pattern::period_of(values); ++i) pattern.push_back(R{values[i]});
  return BlockPattern(pattern);
}

template <class R>
BlockPattern<R> BlockPattern<R>::cut(int64_t blocks) const {
  if (pattern_blocks() <= blocks) return *this;
  std::vector<Value> values;
  for (int64_t block = 0; block < blocks; ++block) values.push_back(at(static_cast<size_t>(block)));
  return of_blocks(values);
}

template <class R>
int64_t BlockPattern<R>::pattern_blocks() const {
  int64_t sum = 0;
  for (const R& run : runs_) sum += run.blocks;
  return std::max<int64_t>(sum, 1);
}

template <class R>
typename R::Value BlockPattern<R>::at(size_t block) const {
  int64_t left = static_cast<int64_t>(block) % pattern_blocks();
  for (const auto& [value, blocks] : runs_) {
    if (left < blocks) return value;
    left -= blocks;
  }
  return kFull;
}

template <class R>
std::vector<R> BlockPattern<R>::counts(int64_t blocks) const {
  const int64_t period = pattern_blocks(), whole = blocks / period;
  int64_t rest = blocks % period;  // of the blocks after all whole patterns
  const auto value_of = [](const R& run) {
    const auto& [value, of_run] = run;
    return value;
  };
  std::vector<R> counts;
  for (const R& run : runs()) {
    const int64_t more = std::min(rest, run.blocks);
    rest -= more;
    const auto known = std::ranges::find(counts, value_of(run), value_of);
    R& count = known != counts.end() ? *known : counts.emplace_back(R{value_of(run), 0});
    count.blocks += whole * run.blocks + more;
  }
  std::erase_if(counts, [](const R& run) { return run.blocks == 0; });
  std::ranges::sort(counts, {}, value_of);
  return counts;
}

template <class R>
std::string text_of(const BlockPattern<R>& pattern) {
  std::string text;
  for (const auto& [value, blocks] : pattern.runs()) {
    text += text.empty() ? "" : ",";
    text += value == BlockPattern<R>::kFull ? "full" : R::text(value);
    if (blocks > 1) text += "*" + std::to_string(blocks);
  }
  return text;
}

}  // namespace tessera

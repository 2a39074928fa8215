#include "model/windows.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// After how many values they repeat, the last time perhaps in part
size_t period_of(const std::vector<int64_t>& windows) {
  size_t period = 1;
  const auto repeats = [&] {
    for (size_t i = period; i < windows.size(); ++i)
      if (windows[i] != windows[i - period]) return false;
    return true;
  };
  while (!repeats()) ++period;
  return period;
}

}  // namespace

Windows::Windows(const std::vector<Run>& pattern) {
  check(!pattern.empty(), "windows of blocks need at least one");
  std::vector<int64_t> of_block;
  for (const auto& [window, blocks] : pattern) {
    check(window >= 0, "a window of attention must be at least 1 token, or 0 for all, found {}", window);
    check(blocks >= 1 && std::ssize(of_block) + blocks <= kMostBlocks,
          "a pattern of windows must have 1 to {} blocks in all, found one of {} after {}", kMostBlocks,
          blocks, of_block.size());
    of_block.insert(of_block.end(), static_cast<size_t>(blocks), window);
  }
  // A pattern repeats whole, so a shorter one says the same if it divides this one.
  const size_t period = period_of(of_block);
  if (of_block.size() % period == 0) of_block.resize(period);
  for (const int64_t window : of_block) {
    if (!runs_.empty() && runs_.back().window == window)
      ++runs_.back().blocks;
    else
      runs_.push_back({.window = window});
  }
  if (runs_.size() == 1 && runs_[0].window == kFull) runs_.clear();
}

Windows Windows::of_blocks(const std::vector<int64_t>& windows) {
  check(!windows.empty(), "windows of blocks need at least one");
  std::vector<Run> pattern;
  for (size_t i = 0; i < period_of(windows); ++i) pattern.push_back({.window = windows[i]});
  return Windows(pattern);
}

Windows Windows::cut(int64_t blocks) const {
  if (pattern_blocks() <= blocks) return *this;
  std::vector<int64_t> windows;
  for (int64_t block = 0; block < blocks; ++block) windows.push_back(at(static_cast<size_t>(block)));
  return of_blocks(windows);
}

int64_t Windows::pattern_blocks() const {
  int64_t sum = 0;
  for (const Run& run : runs_) sum += run.blocks;
  return std::max<int64_t>(sum, 1);
}

int64_t Windows::at(size_t block) const {
  int64_t left = static_cast<int64_t>(block) % pattern_blocks();
  for (const auto& [window, blocks] : runs_) {
    if (left < blocks) return window;
    left -= blocks;
  }
  return kFull;
}

std::vector<Windows::Run> Windows::counts(int64_t blocks) const {
  const int64_t period = pattern_blocks(), whole = blocks / period;
  int64_t rest = blocks % period;  // of the blocks after all whole patterns
  std::vector<Run> counts;
  for (const auto& [window, of_run] : runs()) {
    const int64_t more = std::min(rest, of_run);
    rest -= more;
    const auto known = std::ranges::find(counts, window, &Run::window);
    Run& count = known != counts.end() ? *known : counts.emplace_back(Run{.window = window, .blocks = 0});
    count.blocks += whole * of_run + more;
  }
  std::erase_if(counts, [](const Run& run) { return run.blocks == 0; });
  std::ranges::sort(counts, {}, &Run::window);
  return counts;
}

std::string text_of(const Windows& windows) {
  std::string text;
  for (const auto& [window, blocks] : windows.runs()) {
    text += text.empty() ? "" : ",";
    text += window == Windows::kFull ? "full" : std::to_string(window);
    if (blocks > 1) text += "*" + std::to_string(blocks);
  }
  return text;
}

}  // namespace tessera

#include "model/sparse.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "kernels/attention/block_lists.h"
#include "kernels/attention/choice.h"
#include "kernels/base/check.h"
#include "kernels/base/split.h"
#include "kernels/base/text.h"
#include "model/block_pattern_definitions.h"

namespace tessera {

namespace {

// Those that a query block sees but for random ones, rising
std::vector<int64_t> keys_by_rule(const SparsePattern& p, int64_t query_block) {
  std::vector<int64_t> seen;
  for (int64_t j = std::max<int64_t>(query_block - p.window + 1, 0); j <= query_block; ++j) seen.push_back(j);
  for (int64_t j = 0; j < std::min(p.global, query_block + 1); ++j) seen.push_back(j);
  for (int64_t j = query_block - p.stride; p.stride > 0 && j >= 0; j -= p.stride) seen.push_back(j);
  std::ranges::sort(seen);
  const auto [first, last] = std::ranges::unique(seen);
  seen.erase(first, last);
  return seen;
}

}  // namespace

std::vector<int64_t> SparsePattern::keys_of(int64_t query_block) const {
  std::vector<int64_t> seen = keys_by_rule(*this, query_block);
  if (random == 0) return seen;
  std::vector<int64_t> others;
  for (int64_t j = 0; j <= query_block; ++j)
    if (!std::ranges::binary_search(seen, j)) others.push_back(j);
  std::mt19937_64 generator(static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15 +
                            static_cast<uint64_t>(query_block));
  const auto drawn = static_cast<size_t>(std::min<int64_t>(random, std::ssize(others)));
  for (size_t i = 0; i < drawn; ++i) {
    std::swap(others[i], others[i + generator() % (others.size() - i)]);
    seen.push_back(others[i]);
  }
  std::ranges::sort(seen);
  return seen;
}

int64_t SparsePattern::blocks_seen_by(int64_t query_block) const {
  if (chosen > 0) return std::min(chosen, query_block + 1);
  const int64_t by_rule = std::ssize(keys_by_rule(*this, query_block));
  return by_rule + std::min(random, query_block + 1 - by_rule);
}

BlockLists SparsePattern::lists(int64_t tokens) const {
  std::vector<std::vector<int64_t>> keys;
  for (int64_t row = 0; row * block < tokens; ++row) keys.push_back(keys_of(row));
  return BlockLists(block, 1, tokens, tokens, [&](int64_t /*list*/, int64_t row, int64_t column) {
    return std::ranges::binary_search(keys[static_cast<size_t>(row)], column);
  });
}

namespace {

double triangle(int64_t rows) { return static_cast<double>(rows) * static_cast<double>(rows + 1) / 2; }

// The pairs of a whole sequence, or of a document whose blocks begin with it. Blocks before a query's own are
// whole, so their number is enough.
double pairs_of_sequence(const SparsePattern& p, int64_t tokens) {
  double pairs = 0;
  for (int64_t row = 0; row * p.block < tokens; ++row) {
    const int64_t rows = std::min(p.block, tokens - row * p.block);
    pairs += triangle(rows) + static_cast<double>(rows * (p.blocks_seen_by(row) - 1) * p.block);
  }
  return pairs;
}

}  // namespace

double SparsePattern::pairs(int64_t begin, int64_t end) const {
  if (shows_all(end)) return triangle(end - begin);
  if (chosen > 0 || begin == 0) return pairs_of_sequence(*this, end - begin);
  double pairs = 0;
  for (int64_t row = begin / block; row * block < end; ++row) {
    const auto within = [&](int64_t of_block) {  // its tokens from `begin` to `end`
      return std::max<int64_t>(0, std::min(end, (of_block + 1) * block) - std::max(begin, of_block * block));
    };
    for (const int64_t column : keys_of(row))
      pairs += column == row ? triangle(within(row))
                             : static_cast<double>(within(row)) * static_cast<double>(within(column));
  }
  return pairs;
}

namespace {

// The members as they are written; `least`: the smallest that may be written
struct SparseWord {
  std::string_view name;
  int64_t SparsePattern::*member;
  int64_t least, most;
};
constexpr int64_t kMostOfPattern = 1'000'000;
constexpr SparseWord kSparseWords[] = {{"window", &SparsePattern::window, 1, kMostOfPattern},
                                       {"global", &SparsePattern::global, 1, kMostOfPattern},
                                       {"stride", &SparsePattern::stride, 2, kMostOfPattern},
                                       {"random", &SparsePattern::random, 1, kMostOfPattern},
                                       {"seed", &SparsePattern::seed, 0, 1'000'000'000},
                                       {"chosen", &SparsePattern::chosen, 1, attention::kMostChosen},
                                       {"block", &SparsePattern::block, 128, int64_t{1} << 20}};

// Sets `number` if all of `text` is one.
bool read_whole(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && error == std::errc{} && end == text.data() + text.size();
}

int64_t default_of(const SparseWord& word) { return SparsePattern().*word.member; }

void check_number(const SparseWord& word, int64_t number) {
  check(number >= word.least && number <= word.most, "{}:{} is out of range, expected {} to {}", word.name,
        number, word.least, word.most);
}

SparsePattern read_pattern(std::string_view text) {
  if (text == "full") return {};
  SparsePattern pattern;
  std::vector<std::string_view> given;
  for (const std::string_view part : split(text, '+')) {
    const size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    const auto* word = std::ranges::find(kSparseWords, name, &SparseWord::name);
    int64_t number = 0;
    check(word != std::end(kSparseWords) && colon != part.npos && read_whole(part.substr(colon + 1), number),
          "expected full, window:N and others of global:N, stride:N, random:N, seed:N, block:N with a plus "
          "between "
          "them, or chosen:N and block:N, found {}",
          in_quotes(part));
    check(std::ranges::find(given, name) == given.end(), "{} is given twice in {}", name, in_quotes(text));
    given.push_back(name);
    check_number(*word, number);
    pattern.*word->member = number;
  }
  check(pattern.chosen == 0 || pattern == SparsePattern{.block = pattern.block, .chosen = pattern.chosen},
        "{} has rules beside chosen:N, the blocks that each query chooses: only block:N goes with it",
        in_quotes(text));
  check(pattern.window > 0 || pattern.chosen > 0,
        "{} has no window:N, the last blocks that a block of queries sees, its own among them: at least "
        "window:1; or chosen:N, the blocks that each query chooses",
        in_quotes(text));
  check(pattern.chosen == 0 || pattern.block <= attention::kLargestChoice,
        "block:{} is out of range, expected 128 to 65536 with chosen:N", pattern.block);
  check((pattern.block & (pattern.block - 1)) == 0,
        "block:{} is no power of two: 128, 256, 512 and so on tokens make a block", pattern.block);
  check(pattern.random > 0 || pattern.seed == 0, "seed:{} draws nothing without random:N", pattern.seed);
  return pattern;
}

}  // namespace

void SparseRun::check(const SparsePattern& p) {
  if (p == SparsePattern()) return;
  tessera::check(
      (p.window > 0 || p.chosen > 0) && p.global >= 0 && p.stride >= 0 && p.random >= 0 && p.block > 0,
      "a sparse pattern needs a window or chosen blocks of at least 1, and no negative number, found {}",
      text(p));
}

std::string SparseRun::text(const SparsePattern& pattern) {
  std::string text;
  for (const SparseWord& word : kSparseWords)
    if (pattern.*word.member != default_of(word))
      text += fmt::format("{}{}:{}", text.empty() ? "" : "+", word.name, pattern.*word.member);
  return text;
}

SparseBlocks read_sparse(std::string_view text) {
  std::vector<SparseRun> runs;
  for (const std::string_view entry : split(text, ',')) {
    const size_t star = entry.find('*');
    SparseRun& run = runs.emplace_back();
    run.pattern = read_pattern(entry.substr(0, star));
    if (star == entry.npos) continue;
    check(read_whole(entry.substr(star + 1), run.blocks) && run.blocks >= 1,
          "after a star must be a number of blocks, at least 1, found {}", in_quotes(entry));
  }
  return SparseBlocks(runs);
}

template class BlockPattern<SparseRun>;
template std::string text_of(const SparseBlocks& blocks);

}  // namespace tessera

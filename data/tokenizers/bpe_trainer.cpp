#include "data/tokenizers/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_set>
#include <utility>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/nfc.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using Pair = uint64_t;  // left id, right id: pairs are in the order of their ids
Pair pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Word {
  std::vector<int32_t> tokens;
  int64_t count;
};

struct Candidate {
  int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {  // the largest is merged first
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const std::unordered_map<std::string, int64_t>& counts, const BpeTrainerOptions& options)
      : options_(options), made_(definition_of(options.kind)) {
    check(options.vocab_size >= std::ssize(options.special) + 256,
          "a vocabulary of {} tokens has no room for {} special tokens and the 256 bytes", options.vocab_size,
          options.special.size());
    for (const std::string& content : options.special) {
      check(!content.empty(), "a special token must have a name, found an empty text");
      check(std::ranges::count(options.special, content) == 1, "the special token {} is given twice",
            in_quotes(content));
      made_.added.push_back({.id = next_id(), .content = content, .special = true});
      // Read as a file's vocabulary is
      made_.tokens.push_back(from_byte_alphabet(content).value_or(""));
      check(made_.tokens.back().size() != 1, "the special token {} is the name of a byte",
            in_quotes(content));
    }
    add_bytes();
    words_.reserve(counts.size());
    for (const auto& [piece, count] : counts) {
      Word word{.tokens = {}, .count = count};
      for (const char byte : piece) word.tokens.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
      words_.push_back(std::move(word));
    }
    count_pairs();
  }

  TokenizerDefinition train() {
    while (next_id() < options_.vocab_size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Occurrences& found = pairs_[best.pair];
      if (found.count != best.count) {  // the count is of an earlier time
        if (found.count > 0) queue_.push({found.count, best.pair});
        continue;
      }
      if (best.count < options_.min_count) break;
      if (is_special(bytes_of(best.pair))) continue;              // no text becomes a special token
      const std::vector<int32_t> words = std::move(found.words);  // merging changes `pairs_`
      merge(best.pair, words);
    }
    return std::move(made_);
  }

 private:
  struct Occurrences {
    int64_t count = 0;
    std::vector<int32_t> words;  // in which the pair is or was
  };

  int32_t next_id() const { return static_cast<int32_t>(made_.tokens.size()); }

  std::string bytes_of(Pair pair) const { return made_.tokens[pair >> 32] + made_.tokens[pair & UINT32_MAX]; }
  bool is_special(const std::string& bytes) const {
    return std::ranges::any_of(made_.added, [&](const AddedToken& token) {
      return made_.tokens[static_cast<size_t>(token.id)] == bytes;
    });
  }

  // In the order of the characters that stand for them in files
  void add_bytes() {
    std::vector<std::pair<std::string, unsigned char>> bytes;
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      bytes.emplace_back(to_byte_alphabet({&c, 1}), static_cast<unsigned char>(byte));
    }
    std::ranges::sort(bytes);  // UTF-8 sorts as code points do
    for (const auto& [character, byte] : bytes) {
      byte_tokens_[byte] = next_id();
      ids_[std::string(1, static_cast<char>(byte))] = next_id();
      made_.tokens.emplace_back(1, static_cast<char>(byte));
    }
  }

  void count_pairs() {
    for (size_t w = 0; w < words_.size(); ++w)
      for (size_t i = 1; i < words_[w].tokens.size(); ++i)
        change(pair_of(words_[w].tokens[i - 1], words_[w].tokens[i]), static_cast<int32_t>(w), 1);
    queue_changed();
  }

  // There are `sign` occurrences more of the pair in a word.
  void change(Pair pair, int32_t word, int sign) {
    Occurrences& found = pairs_[pair];
    found.count += sign * words_[static_cast<size_t>(word)].count;
    if (sign < 0) return;
    if (found.words.empty() || found.words.back() != word) found.words.push_back(word);
    changed_.insert(pair);
  }

  void queue_changed() {
    for (const Pair pair : changed_)
      if (const int64_t count = pairs_[pair].count; count > 0) queue_.push({count, pair});
    changed_.clear();
  }

  void merge(Pair pair, const std::vector<int32_t>& words) {
    const auto left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair & UINT32_MAX);
    const std::string bytes = bytes_of(pair);
    // Another pair may have made the same token before.
    const auto [known, is_new] = ids_.emplace(bytes, next_id());
    const int32_t id = known->second;
    if (is_new) made_.tokens.push_back(bytes);
    if (merged_.insert(pair).second) made_.merges.push_back({left, right, id});
    pairs_.erase(pair);
    for (const int32_t word : words) merge_in(word, left, right, id);
    pairs_.erase(pair);  // overlapping pairs, as in "aaa", were counted on the way
    changed_.erase(pair);
    queue_changed();
    if (options_.on_merge) options_.on_merge(next_id());
  }

  void merge_in(int32_t word, int32_t left, int32_t right, int32_t id) {
    std::vector<int32_t>& tokens = words_[static_cast<size_t>(word)].tokens;
    size_t end = 0;  // of what is done
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i + 1 == tokens.size() || tokens[i] != left || tokens[i + 1] != right) {
        tokens[end++] = tokens[i];
        continue;
      }
      if (end > 0) {
        change(pair_of(tokens[end - 1], left), word, -1);
        change(pair_of(tokens[end - 1], id), word, 1);
      }
      if (i + 2 < tokens.size()) {
        change(pair_of(right, tokens[i + 2]), word, -1);
        change(pair_of(id, tokens[i + 2]), word, 1);
      }
      tokens[end++] = id;
      ++i;
    }
    tokens.resize(end);
  }

  const BpeTrainerOptions& options_;
  TokenizerDefinition made_;
  std::array<int32_t, 256> byte_tokens_{};
  std::unordered_map<std::string, int32_t> ids_;  // by bytes
  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences> pairs_;
  std::unordered_set<Pair> changed_;  // more often than before, since the last queue_changed()
  std::unordered_set<Pair> merged_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

PieceCounts::PieceCounts(PreTokenizerKind kind)
    : form_(definition_of(kind).form), pre_tokenizer_(definition_of(kind).splits, name_of(kind)) {}

void PieceCounts::add(std::string_view text) {
  const auto count = [&](std::string_view piece) { ++counts_[std::string(piece)]; };
  for_each_utf8_run(
      text,
      [&](std::string_view run) {
        const bool is_composed = looks_composed(run, form_);
        const std::string composed = is_composed ? "" : compose(run, form_);
        pre_tokenizer_.split(is_composed ? run : composed, scratch_, count);
      },
      count);
}

void PieceCounts::add(const PieceCounts& other) {
  for (const auto& [piece, count] : other.counts_) counts_[piece] += count;
}

TokenizerDefinition train_bpe(const std::unordered_map<std::string, int64_t>& counts,
                              const BpeTrainerOptions& options) {
  return Trainer(counts, options).train();
}

}  // namespace tessera

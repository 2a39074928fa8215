// What a byte-level BPE tokenizer is made of, whatever file it comes from.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/nfc.h"
#include "kernels/base/words.h"

namespace tessera {

// What becomes of the matches of an expression that a text is split by. Each is a piece of its own
// (kIsolated), dropped (kRemoved), the end of the piece before it, the start of the one after it, or one
// piece with the matches beside it (kContiguous).
enum class SplitBehavior : uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
constexpr auto words_of(SplitBehavior) {
  return std::array{Word{"Isolated", SplitBehavior::kIsolated}, Word{"Removed", SplitBehavior::kRemoved},
                    Word{"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                    Word{"MergedWithNext", SplitBehavior::kMergedWithNext},
                    Word{"Contiguous", SplitBehavior::kContiguous}};
}

struct SplitRule {
  std::string pattern;  // as in regex.h
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool literal = false;  // `pattern` is a text
  bool invert = false;   // what does not match counts as the matches
  bool operator==(const SplitRule&) const = default;
};

// A token that is searched for in the text before it is split
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // marks structure, not text
  bool normalized = false;   // searched for in the normalised text
  bool single_word = false;  // not beside a letter, digit or underscore
  bool strip_left = false;   // takes the blanks before it, too
  bool strip_right = false;  // and after it
  bool operator==(const AddedToken&) const = default;
};

// A token of the vocabulary that no text has: it is empty, or has a character that stands for no byte.
struct UnreachableToken {
  int32_t id = 0;
  std::string content;  // which it decodes to
  bool operator==(const UnreachableToken&) const = default;
};

struct Merge {
  int32_t left, right, result;  // ids
};

struct TokenizerDefinition {
  std::vector<std::string> tokens;            // their bytes, by id; "": no such token
  std::vector<Merge> merges;                  // the first is done first
  std::vector<AddedToken> added;              // by ascending id; one may have an id of `tokens`
  std::vector<UnreachableToken> unreachable;  // by ascending id
  NormalForm form = NormalForm::kNone;        // that texts are brought into
  bool prefix_blank = false;                  // a text that does not begin with a blank gets one
  std::vector<SplitRule> splits;              // each splits the pieces of the one before
  std::vector<SplitRule> byte_splits;  // then these, which see the pieces as written in the byte alphabet
  bool ignore_merges = false;          // a piece that is a token is that token, whatever the merges say
  std::vector<int32_t> before, after;  // what the template puts around a text
};

inline bool has_token(const TokenizerDefinition& d, int64_t id) {
  for (const AddedToken& token : d.added)
    if (token.id == id) return true;
  for (const UnreachableToken& token : d.unreachable)
    if (token.id == id) return true;
  return id >= 0 && id < std::ssize(d.tokens) && !d.tokens[static_cast<size_t>(id)].empty();
}

// How the tokenizers of well-known models split texts.
enum class PreTokenizerKind : uint8_t { kGpt2, kLlama3, kQwen2, kSmolLm2 };
constexpr auto words_of(PreTokenizerKind) {
  return std::array{Word{"gpt2", PreTokenizerKind::kGpt2}, Word{"llama3", PreTokenizerKind::kLlama3},
                    Word{"qwen2", PreTokenizerKind::kQwen2}, Word{"smollm2", PreTokenizerKind::kSmolLm2}};
}

inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr const char* kDigitPattern = R"(\p{N})";
inline constexpr const char* kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";  // ASCII's symbols, too

// `form` and `splits` of a kind, the rest empty.
inline TokenizerDefinition definition_of(PreTokenizerKind kind) {
  TokenizerDefinition made;
  if (kind == PreTokenizerKind::kQwen2) made.form = NormalForm::kNfc;
  if (kind == PreTokenizerKind::kSmolLm2) made.splits.push_back({.pattern = kDigitPattern});
  const char* pattern = kind == PreTokenizerKind::kLlama3  ? kLlama3Pattern
                        : kind == PreTokenizerKind::kQwen2 ? kQwen2Pattern
                                                           : kGpt2Pattern;
  made.splits.push_back({.pattern = pattern});
  return made;
}

}  // namespace tessera

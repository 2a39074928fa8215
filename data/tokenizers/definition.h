// What a BPE tokenizer is made of, whatever file it comes from. It is byte-level, as GPT-2's, or its tokens
// are characters and what they are merged to, as those of Llama 2, Mistral and Gemma, which come from
// SentencePiece.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
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

// A change of a text: each match of `pattern`, which may be as in regex.h, becomes `content`. Without a
// pattern `content` is put before the text, unless that is empty.
struct TextChange {
  std::string pattern;
  std::string content;
  bool literal = true;  // `pattern` is a text
  bool operator==(const TextChange&) const = default;
};

// Which pieces of a text Metaspace puts its character before: the one that begins the text, all, or none
enum class PrependScheme : uint8_t { kFirst, kAlways, kNever };
constexpr auto words_of(PrependScheme) {
  return std::array{Word{"first", PrependScheme::kFirst}, Word{"always", PrependScheme::kAlways},
                    Word{"never", PrependScheme::kNever}};
}

// Blanks become a visible character, and a piece that does not begin with it may get one.
struct Metaspace {
  std::string replacement = "\u2581";
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;  // before each of these characters
  bool operator==(const Metaspace&) const = default;
};

// How tokens that are characters become text
struct CharacterDecoder {
  std::vector<TextChange> changes = {};     // of each token
  bool bytes = false;                       // "<0x0A>" is the byte 10
  std::string dropped_from_first = {};      // a character that the first token loses
  char strip = ' ';                         // this character is removed from the whole text,
  int64_t strip_start = 0, strip_stop = 0;  // at most so often at its start and its end
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

// A token of the vocabulary that no text has: it is empty, or of a byte-level vocabulary and has a character
// that stands for no byte.
struct UnreachableToken {
  int32_t id = 0;
  std::string content;  // which it decodes to
  bool operator==(const UnreachableToken&) const = default;
};

struct Merge {
  int32_t left, right, result;  // ids
};

struct TokenizerDefinition {
  bool byte_level = true;                     // else of characters
  std::vector<std::string> tokens;            // by id: their bytes, or characters; "": no such token
  std::vector<Merge> merges;                  // the first is done first
  std::vector<AddedToken> added;              // by ascending id; one may have an id of `tokens`
  std::vector<UnreachableToken> unreachable;  // by ascending id
  NormalForm form = NormalForm::kNone;        // that texts are brought into
  std::vector<TextChange> changes;            // then, in this order, for each text between added tokens
  std::vector<SplitRule> splits;              // each splits the pieces of the one before
  bool prefix_blank = false;                  // a text that does not begin with a blank gets one
  std::optional<Metaspace> metaspace;         // or this changes each piece
  std::vector<SplitRule> late_splits;         // then these, which see bytes as written in the byte alphabet
  bool ignore_merges = false;          // a piece that is a token is that token, whatever the merges say
  std::vector<int32_t> before, after;  // what the template puts around a text
  // Of characters: one without a token becomes the tokens of its bytes, "<0xC3>" and "<0xA9>" for "\u00e9",
  // if all of them exist, else the token `unknown` (-1: none), once for several in a row if `fuse_unknown`.
  bool byte_fallback = false, fuse_unknown = false;
  int32_t unknown = -1;
  CharacterDecoder decoder;
};

inline bool has_token(const TokenizerDefinition& d, int64_t id) {
  for (const AddedToken& token : d.added)
    if (token.id == id) return true;
  for (const UnreachableToken& token : d.unreachable)
    if (token.id == id) return true;
  return id >= 0 && id < std::ssize(d.tokens) && !d.tokens[static_cast<size_t>(id)].empty();
}

// How the tokenizers of well-known models split texts.
enum class PreTokenizerKind : uint8_t { kGpt2, kLlama3, kQwen2, kSmolLm2, kGpt4o };
constexpr auto words_of(PreTokenizerKind) {
  return std::array{Word{"gpt2", PreTokenizerKind::kGpt2}, Word{"llama3", PreTokenizerKind::kLlama3},
                    Word{"qwen2", PreTokenizerKind::kQwen2}, Word{"smollm2", PreTokenizerKind::kSmolLm2},
                    Word{"gpt4o", PreTokenizerKind::kGpt4o}};
}

inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
// Of GPT-4o, gpt-oss and Phi-4: a word's capitals come first, and an abbreviation such as 's is part of it.
inline constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kDigitPattern = R"(\p{N})";
inline constexpr const char* kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";  // ASCII's symbols, too

// `form` and `splits` of a kind, the rest empty.
inline TokenizerDefinition definition_of(PreTokenizerKind kind) {
  TokenizerDefinition made;
  if (kind == PreTokenizerKind::kQwen2) made.form = NormalForm::kNfc;
  if (kind == PreTokenizerKind::kSmolLm2) made.splits.push_back({.pattern = kDigitPattern});
  const char* pattern = kind == PreTokenizerKind::kLlama3  ? kLlama3Pattern
                        : kind == PreTokenizerKind::kQwen2 ? kQwen2Pattern
                        : kind == PreTokenizerKind::kGpt4o ? kGpt4oPattern
                                                           : kGpt2Pattern;
  made.splits.push_back({.pattern = pattern});
  return made;
}

}  // namespace tessera

// TokenizerDefinition has all parts of a BPE tokenizer, whatever file it comes from. The tokenizer is
// byte-level, as GPT-2's, or its tokens are characters and merges of characters, as in Llama 2, Mistral and
// Gemma, whose tokenizers come from SentencePiece.
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

// An expression splits a text, and its matches become pieces of their own (kIsolated), disappear (kRemoved),
// end the piece before them (kMergedWithPrevious), begin the one after them (kMergedWithNext), or join the
// matches beside them in one piece (kContiguous).
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
  bool literal = false;  // `pattern` is a text to be found as it is
  bool invert = false;   // the matches are what `pattern` does not match
  bool operator==(const SplitRule&) const = default;
};

// A change of a text: `content` replaces each match of `pattern`. If `pattern` is empty, `content` goes
// before the text, unless the text is empty.
struct TextChange {
  std::string pattern;
  std::string content;
  bool literal = true;  // `pattern` is a text to be found as it is, else as in regex.h
  bool operator==(const TextChange&) const = default;
};

// Metaspace puts its character before the piece that begins the text, before all pieces, or before none.
enum class PrependScheme : uint8_t { kFirst, kAlways, kNever };
constexpr auto words_of(PrependScheme) {
  return std::array{Word{"first", PrependScheme::kFirst}, Word{"always", PrependScheme::kAlways},
                    Word{"never", PrependScheme::kNever}};
}

// A visible character replaces each blank, and is put before pieces that do not begin with it (`prepend`).
struct Metaspace {
  std::string replacement = "\u2581";
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;  // the text is split before each of these characters
  bool operator==(const Metaspace&) const = default;
};

// How tokens that are characters become text
struct CharacterDecoder {
  std::vector<TextChange> changes = {};     // of each token
  bool bytes = false;                       // "<0x0A>" is the byte 10
  std::string dropped_from_first = {};      // a character that the first token loses
  char strip = ' ';                         // this character is removed from the start of the whole text
  int64_t strip_start = 0, strip_stop = 0;  // and from its end, at most so often
};

// A token that is searched for in the text before it is split
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // it marks structure, not text
  bool normalized = false;   // it is searched for in the normalised text
  bool single_word = false;  // it is not found beside a letter, digit or underscore
  bool strip_left = false;   // it takes the blanks before it
  bool strip_right = false;  // it takes the blanks after it
  bool operator==(const AddedToken&) const = default;
};

// A token of the vocabulary that no text is encoded to: it is empty, or it belongs to a byte-level vocabulary
// and has a character that stands for no byte.
struct UnreachableToken {
  int32_t id = 0;
  std::string content;  // the text that it decodes to
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
  NormalForm form = NormalForm::kNone;        // a text is first brought into this form,
  std::vector<TextChange> changes;            // changed between its added tokens by each of these in turn,
  std::vector<SplitRule> splits;              // and split: each rule splits the pieces of the one before
  bool prefix_blank = false;                  // a text that does not begin with a blank gets one
  std::optional<Metaspace> metaspace;         // instead of `prefix_blank`: changes each piece
  std::vector<SplitRule> late_splits;         // split last, and see bytes as the byte alphabet writes them
  bool ignore_merges = false;          // a piece that is a token is that token, whatever the merges say
  std::vector<int32_t> before, after;  // the ids that the template puts around a text
  // A character without a token becomes the tokens of its bytes, "<0xC3>" and "<0xA9>" for "\u00e9", if all
  // of them exist, else the token `unknown` (-1: none). `fuse_unknown` makes several in a row one such token.
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

// "bpe-" and a checksum of all that decides which ids a text has, in an order of its own
std::string name_of_content(const TokenizerDefinition& definition);

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
// GPT-4o, gpt-oss and Phi-4: capitals are at the start of a word, and an ending such as 's is part of it.
inline constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr const char* kDigitPattern = R"(\p{N})";
inline constexpr const char* kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";  // with the symbols of ASCII

// The definition that has `form` and `splits` of a kind, and nothing else
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

#include "data/tokenizers/pre_tokenizer.h"

#include <algorithm>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/text_changes.h"

namespace tessera {
namespace {

// `part` follows `before` in the text.
void extend(std::string_view& before, std::string_view part) {
  before = {before.data(), before.size() + part.size()};
}

}  // namespace

size_t last_blank_between_words(std::string_view text) {
  for (size_t at = text.rfind(' '); at != text.npos && at > 0; at = text.rfind(' ', at - 1))
    if (at + 1 < text.size() && is_ascii_letter(text[at - 1]) && is_ascii_letter(text[at + 1])) return at;
  return 0;
}

PreTokenizer::PreTokenizer(const std::vector<SplitRule>& rules, const std::string& where,
                           const std::vector<SplitRule>& byte_rules) {
  if (!byte_rules.empty()) in_alphabet_ = std::make_unique<PreTokenizer>(byte_rules, where);
  for (const SplitRule& rule : rules)
    steps_.push_back({rule.literal ? Regex::literal(rule.pattern, where) : Regex(rule.pattern, where),
                      rule.behavior, rule.invert});
  // The three expressions match every character, and a match that has a letter goes no further than to a
  // blank. Single digits before them do not matter there.
  const auto is_digits = [](const SplitRule& rule) { return rule.pattern == kDigitPattern; };
  const auto first = std::ranges::find_if_not(rules, is_digits);
  const auto keeps_matches = [](const SplitRule& rule) {
    return rule.behavior == SplitBehavior::kIsolated ||
           (rule.behavior == SplitBehavior::kRemoved && rule.invert);
  };
  splits_between_words_ =
      first != rules.end() && !first->literal && keeps_matches(*first) &&
      (first->pattern == kGpt2Pattern || first->pattern == kLlama3Pattern || first->pattern == kQwen2Pattern);
}

// Gives parts of `bytes` itself: a character of the alphabet is a byte.
void PreTokenizer::split_bytes(std::string_view bytes, Regex::Scratch& scratch,
                               const std::function<void(std::string_view)>& on_piece) const {
  const std::string written = to_byte_alphabet(bytes);
  const auto characters = [](std::string_view text) {
    return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  const char* done = written.data();  // what was looked at
  size_t at = 0;                      // its bytes
  const std::function<void(std::string_view)> on_written = [&](std::string_view piece) {
    at += characters({done, static_cast<size_t>(piece.data() - done)});
    const size_t count = characters(piece);
    on_piece(bytes.substr(at, count));
    at += count;
    done = piece.data() + piece.size();
  };
  in_alphabet_->split(written, scratch, on_written);
}

std::vector<std::string_view> PreTokenizer::parts_of(const Step& step, std::string_view text,
                                                     Regex::Scratch& scratch) {
  std::vector<Part> parts;
  size_t end = 0;
  const auto add = [&](size_t last, bool is_match) {
    if (last > end) parts.push_back({text.substr(end, last - end), is_match != step.invert});
    end = last;
  };
  while (const auto match = step.regex.find(text, end, scratch)) {
    add(match->first, false);
    add(match->last, true);
    if (end == text.size()) break;
  }
  add(text.size(), false);

  std::vector<std::string_view> pieces;
  // Merging with the next is merging with the previous from the end.
  const bool backwards = step.behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::ranges::reverse(parts);
  bool after_match = false;
  for (const auto& [part, is_match] : parts) {
    const bool joins =
        step.behavior == SplitBehavior::kContiguous ? is_match == after_match : is_match && !after_match;
    after_match = is_match;
    if (!joins || pieces.empty()) {
      pieces.push_back(part);
    } else if (backwards) {
      pieces.back() = {part.data(), part.size() + pieces.back().size()};
    } else {
      extend(pieces.back(), part);
    }
  }
  if (backwards) std::ranges::reverse(pieces);
  return pieces;
}

}  // namespace tessera

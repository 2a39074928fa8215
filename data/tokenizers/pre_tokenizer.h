// Splits a text into the pieces that BPE works on, which no token crosses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/regex.h"
#include "kernels/base/text.h"

namespace tessera {

// Cuts `text` into runs of well-formed UTF-8 and of bytes that are none, in their order.
template <class OnText, class OnBytes>
void for_each_utf8_run(std::string_view text, OnText&& on_text, OnBytes&& on_bytes) {
  while (!text.empty()) {
    const size_t valid = utf8_prefix(text);
    if (valid > 0) on_text(text.substr(0, valid));
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size() && !first_code_point(text.substr(invalid))) ++invalid;
    if (invalid > 0) on_bytes(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

// The last blank between an ASCII letter and another; 0: there is none.
size_t last_blank_between_words(std::string_view text);

class PreTokenizer {
 public:
  // `byte_rules` split the pieces that `rules` give as they are written in the byte alphabet. `where` begins
  // the messages. Error: an expression that is not known.
  PreTokenizer(const std::vector<SplitRule>& rules, const std::string& where,
               const std::vector<SplitRule>& byte_rules = {});

  // Calls `on_piece` for each piece of `text`, well-formed UTF-8, in their order. None is empty.
  template <class OnPiece>
  void split(std::string_view text, Regex::Scratch& scratch, OnPiece&& on_piece) const {
    split_from(0, text, scratch, on_piece);
  }

  // Whether a text is one piece, without rules
  bool splits_nothing() const { return steps_.empty() && !in_alphabet_; }
  // Whether every text is split before each blank between an ASCII letter and another, and the pieces on one
  // side do not depend on the other side.
  bool splits_between_words() const { return splits_between_words_; }

 private:
  struct Step {
    Regex regex;
    SplitBehavior behavior;
    bool invert;
  };
  struct Part {
    std::string_view text;
    bool is_match;
  };

  template <class OnPiece>
  void split_from(size_t step, std::string_view text, Regex::Scratch& scratch, OnPiece& on_piece) const {
    if (text.empty()) return;
    if (step == steps_.size()) {
      if (in_alphabet_) return split_bytes(text, scratch, on_piece);
      return on_piece(text);
    }
    const auto next = [&](std::string_view part) { split_from(step + 1, part, scratch, on_piece); };
    const Step& s = steps_[step];
    if (s.behavior != SplitBehavior::kIsolated && s.behavior != SplitBehavior::kRemoved) {
      for (const std::string_view part : parts_of(s, text, scratch)) next(part);
      return;
    }
    const bool gives_all = s.behavior == SplitBehavior::kIsolated;
    const bool gives_matches = gives_all || s.invert, gives_others = gives_all || !s.invert;
    size_t end = 0;
    while (const auto match = s.regex.find(text, end, scratch)) {
      if (gives_others) next(text.substr(end, match->first - end));
      if (gives_matches) next(text.substr(match->first, match->last - match->first));
      end = match->last;
      if (end == text.size()) return;
    }
    if (gives_others) next(text.substr(end));
  }
  void split_bytes(std::string_view bytes, Regex::Scratch& scratch,
                   const std::function<void(std::string_view)>& on_piece) const;
  static std::vector<std::string_view> parts_of(const Step& step, std::string_view text,
                                                Regex::Scratch& scratch);

  std::vector<Step> steps_;
  std::unique_ptr<PreTokenizer> in_alphabet_;  // of the byte rules; null: there are none
  bool splits_between_words_ = false;
};

}  // namespace tessera

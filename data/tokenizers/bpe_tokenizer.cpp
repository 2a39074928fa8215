#include "data/tokenizers/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/nfc.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/text_changes.h"
#include "data/tokenizers/tokenizer_json.h"
#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// An object for each thread that encodes at the moment, used again by later ones
template <class T>
class Pool {
 public:
  class Lease {
   public:
    explicit Lease(Pool& pool) : pool_(pool), object_(pool.take()) {}
    ~Lease() { pool_.give_back(std::move(object_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T& operator*() { return *object_; }

   private:
    Pool& pool_;
    std::unique_ptr<T> object_;
  };

 private:
  std::unique_ptr<T> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<T>();
    auto object = std::move(idle_.back());
    idle_.pop_back();
    return object;
  }
  void give_back(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(object));
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerDefinition definition, int32_t end_of_text, std::string json,
               const std::string& where)
      : definition_(std::move(definition)),
        bpe_(definition_, where),
        changes_(definition_.changes, where),
        decoder_changes_(definition_.decoder.changes, where),
        splits_(rules_that_match(definition_.splits, changes_.remove_blanks()), where,
                definition_.metaspace ? std::vector<SplitRule>() : definition_.late_splits),
        late_splits_(rules_after_metaspace(), where),
        added_(definition_.added, false, {}),
        added_normalized_(definition_.added, true,
                          [this](std::string_view text) { return normalized(text); }),
        end_of_text_(end_of_text),
        name_(name_of_content(definition_)),
        json_(json.empty() ? tokenizer_json(definition_) : std::move(json)) {
    token_bytes_ = definition_.tokens;
    if (!definition_.byte_level)
      for (std::string& token : token_bytes_) token = decoded(token);
    for (const UnreachableToken& token : definition_.unreachable)
      token_bytes_[static_cast<size_t>(token.id)] = token.content;
    for (const AddedToken& token : definition_.added) {
      const auto id = static_cast<size_t>(token.id);
      if (id >= token_bytes_.size()) token_bytes_.resize(id + 1);
      const bool is_name = definition_.byte_level || token.special;
      token_bytes_[id] = is_name ? token.content : decoded(written(token));
      if (token.special) special_.push_back(token.id);
    }
    cuts_between_words_ = may_cut_between_words();
  }

  std::string_view name() const override { return name_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(token_bytes_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::span<const AddedToken> added_tokens() const override { return definition_.added; }
  int32_t special_token(std::string_view content) const override {
    for (const AddedToken& token : definition_.added)
      if (token.special && token.content == content) return token.id;
    return -1;
  }
  std::span<const int32_t> before_text() const override { return definition_.before; }
  std::span<const int32_t> after_text() const override { return definition_.after; }
  const std::string& json() const override { return json_; }
  using Tokenizer::encode;

  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids,
              TextPlace place) const override {
    encode(text, special, ids, place, nullptr);
  }
  int64_t encode_known(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids,
                       TextPlace place) const override {
    int64_t left_out = 0;
    encode(text, special, ids, place, &left_out);
    return left_out;
  }

  std::string decode(std::span<const int32_t> ids, bool show_special) const override {
    const CharacterDecoder& decoder = definition_.decoder;
    std::string text;
    bool is_first = !decoder.dropped_from_first.empty();
    for (const int32_t id : ids) {
      check_has_token(id);
      if (is_left_out(id, show_special)) continue;
      text += std::exchange(is_first, false) ? first_text(id) : token_bytes_[static_cast<size_t>(id)];
    }
    const auto last = static_cast<size_t>(std::ssize(text));
    size_t begin = 0, end = last;
    while (begin < end && std::cmp_less(begin, decoder.strip_start) && text[begin] == decoder.strip) ++begin;
    while (begin < end && std::cmp_less(last - end, decoder.strip_stop) && text[end - 1] == decoder.strip)
      --end;
    return begin == 0 && end == last ? text : text.substr(begin, end - begin);
  }

  std::string token_text(int32_t id, bool show_special) const override {
    check_has_token(id);
    return is_left_out(id, show_special) ? std::string() : token_bytes_[static_cast<size_t>(id)];
  }

  size_t last_cut(std::string_view text) const override {
    return cuts_between_words_ ? last_blank_between_words(text) : 0;
  }

  std::vector<std::array<std::string, 2>> facts() const override {
    std::vector<std::array<std::string, 2>> facts;
    const auto tokens =
        std::ranges::count_if(token_bytes_, [](const auto& token) { return !token.empty(); }) +
        std::ranges::count(definition_.unreachable, "", &UnreachableToken::content);
    facts.push_back({"tokens", fmt::format("{}", tokens)});
    if (!definition_.unreachable.empty())
      facts.push_back({"tokens of no text", fmt::format("{}", definition_.unreachable.size())});
    facts.push_back(
        {"merges", fmt::format("{}{}", definition_.merges.size(),
                               definition_.ignore_merges ? ", not for pieces that are tokens" : "")});
    if (const int32_t missing = bpe_.symbols().bytes_without_token())
      facts.push_back({"bytes without a token", fmt::format("{}", missing)});
    if (!definition_.byte_level) facts.push_back({"other characters", facts_of_unknown()});
    facts.push_back({"normal form", definition_.form == NormalForm::kNone ? "none: text is taken as it is"
                                                                          : name_of(definition_.form)});
    for (const TextChange& change : definition_.changes)
      if (change.pattern.empty())
        facts.push_back({"before a text", in_quotes(change.content)});
      else
        facts.push_back(
            {"change", fmt::format("{} becomes {}", in_quotes(change.pattern), in_quotes(change.content))});
    if (definition_.prefix_blank) facts.push_back({"before a text", "a blank, if it begins with none"});
    const auto add_rules = [&](const char* what, const std::vector<SplitRule>& rules) {
      for (const SplitRule& rule : rules)
        facts.push_back({what, fmt::format("{} ({}{})", printable(rule.pattern), name_of(rule.behavior),
                                           rule.invert ? ", inverted" : "")});
    };
    add_rules("splits", definition_.splits);
    if (const auto& m = definition_.metaspace)
      facts.push_back({"blanks", fmt::format("become {}, which is put before {}{}", in_quotes(m->replacement),
                                             m->prepend == PrependScheme::kFirst    ? "the text"
                                             : m->prepend == PrependScheme::kAlways ? "texts"
                                                                                    : "nothing",
                                             m->split ? ", and splits" : "")});
    add_rules(definition_.metaspace ? "splits" : "splits of bytes", definition_.late_splits);
    for (const auto& [what, ids] :
         {std::pair("template before", definition_.before), std::pair("template after", definition_.after)})
      for (const int32_t id : ids) facts.push_back({what, token_fact(id)});
    for (const AddedToken& token : definition_.added)
      facts.push_back({token.special ? "special token" : "added token", token_fact(token.id)});
    return facts;
  }

 private:
  struct Scratch {
    Regex::Scratch regex;
    Bpe::Cache cache;
  };
  struct Work {  // one call of encode()
    Scratch& scratch;
    SpecialTokens special;
    std::vector<int32_t>& ids;
    int64_t* left_out;  // null: a byte without a token is an error
    // What is being encoded: a part of the text, and what is made of it, each from the one before: its normal
    // form, its changed text, and a piece of that with the blank that is put before it. They are empty where
    // they would be the same.
    std::string_view part = {};
    std::string normalized = {};
    std::string_view before_change = {};
    std::string changed = {};
    std::string_view before_blank = {};
    std::string with_blank = {};
  };

  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids, TextPlace place,
              int64_t* left_out) const {
    Pool<Scratch>::Lease lease(pool_);
    // More than most texts need; where texts are appended one by one, twice as much as before.
    if (const size_t most = ids.size() + text.size() / 3; most > ids.capacity())
      ids.reserve(std::max(most, 2 * ids.capacity()));
    Work work{.scratch = *lease, .special = special, .ids = ids, .left_out = left_out};
    try {
      if (!added_.finds(special)) return encode_text(text, place, work);
      added_.split(
          text, special, [&](std::string_view part) { encode_text(part, place_of(part, text, place), work); },
          [&](const AddedToken& token) { ids.push_back(token.id); });
    } catch (const NoToken& error) {
      throw ByteWithoutToken(error.what(), line_of(error.place, text, work));
    }
  }

  // Of a part between added tokens
  static TextPlace place_of(std::string_view part, std::string_view text, TextPlace place) {
    return part.data() == text.data() ? place : TextPlace::kAfterToken;
  }

  // The line of `text` that `place` belongs to, which may lie in one of the texts that were made from it. No
  // normal form changes the number of lines, and a change of line ends is not known.
  static int64_t line_of(const char* place, std::string_view text, const Work& work) {
    int64_t line = 1;
    const auto is_in = [&](std::string_view buffer) {
      return std::greater_equal<>()(place, buffer.data()) &&
             std::less<>()(place, buffer.data() + buffer.size());
    };
    const auto count = [&](std::string_view buffer) { line += std::count(buffer.data(), place, '\n'); };
    if (is_in(work.with_blank)) {
      count(work.with_blank);
      place = work.before_blank.data();
    }
    if (is_in(work.changed)) {
      count(work.changed);
      place = work.before_change.data();
    }
    if (is_in(work.normalized)) {
      count(work.normalized);
      place = work.part.data();
    }
    count(text);
    return line;
  }

  // Rules without those that no text matches: of a blank, where none is left, as in Gemma's.
  static std::vector<SplitRule> rules_that_match(std::vector<SplitRule> rules, bool no_blanks) {
    std::erase_if(rules, [&](const SplitRule& rule) {
      return no_blanks && rule.literal && !rule.invert && rule.pattern.find(' ') != rule.pattern.npos;
    });
    return rules;
  }
  std::vector<SplitRule> rules_after_metaspace() const {
    if (!definition_.metaspace) return {};
    std::vector<SplitRule> rules = rules_that_match(definition_.late_splits, true);
    if (definition_.metaspace->split)
      rules.insert(rules.begin(), {.pattern = definition_.metaspace->replacement,
                                   .behavior = SplitBehavior::kMergedWithNext,
                                   .literal = true});
    return rules;
  }

  // Whether a text may be cut between a letter of ASCII and a blank before another letter.
  bool may_cut_between_words() const {
    Regex::Scratch scratch;
    std::string blank = changes_.apply(" ", scratch, false);
    for (const AddedToken& token : definition_.added) {
      const std::string content = token.normalized ? normalized(token.content) : token.content;
      if (may_cross_cut(token, content, blank) || may_cross_cut(token, content, " ")) return false;
      // A text after a token is one that starts, and what follows a cut is not.
      if (changes_.prepend() && !token.normalized && is_ascii_letter(token.content.back())) return false;
    }
    if (!changes_.keep_words_apart()) return false;
    if (definition_.byte_level) return changes_.empty() && splits_.splits_between_words();
    const auto& metaspace = definition_.metaspace;
    if (metaspace) blank = spaced(blank, false);
    if (!splits_.splits_nothing() || !rules_that_match(definition_.late_splits, true).empty()) return false;
    if (metaspace && metaspace->split) return blank.starts_with(metaspace->replacement);
    const auto after = first_code_point(blank);
    return after && bpe_.borders().known() && bpe_.borders().after_letters(after->code);
  }

  // Whether the token may be found otherwise if a text is cut between an ASCII letter and a blank: it is on
  // both sides, takes the blank, or looks at the letter. `blank`: as the text that is searched has it.
  static bool may_cross_cut(const AddedToken& token, std::string_view content, std::string_view blank) {
    return has_letter_before(content, blank) || (token.strip_right && is_ascii_letter(content.back())) ||
           (token.single_word && content.starts_with(blank));
  }

  void check_has_token(int32_t id) const {
    check(id >= 0 && id < vocab_size() &&
              (!token_bytes_[static_cast<size_t>(id)].empty() || has_token(definition_, id)),
          "the id {} has no token in the tokenizer {}, whose ids are 0 to {}", id, name_, vocab_size() - 1);
  }
  bool is_left_out(int32_t id, bool show_special) const {
    return !show_special && std::ranges::binary_search(special_, id);
  }

  // The text of a token that is characters
  std::string decoded(std::string_view token) const {
    Regex::Scratch scratch;
    std::string text = decoder_changes_.apply(token, scratch);
    const auto byte = byte_of_token(text);
    return definition_.decoder.bytes && byte ? std::string(1, static_cast<char>(*byte)) : text;
  }
  // An added token as the vocabulary would have it. Gemma's list of them has runs of blanks, which texts have
  // without that list, too.
  std::string written(const AddedToken& token) const {
    return token.normalized ? normalized(token.content) : token.content;
  }
  // The text of the first token, without the character that stands for a blank
  std::string first_text(int32_t id) const {
    const auto at = static_cast<size_t>(id);
    const auto added = std::ranges::find(definition_.added, id, &AddedToken::id);
    const bool is_added = added != definition_.added.end();
    if (is_added && added->special) return token_bytes_[at];
    Regex::Scratch scratch;
    const TextChange dropped{.pattern = definition_.decoder.dropped_from_first, .content = ""};
    const std::string text = is_added ? written(*added) : definition_.tokens[at];
    return decoded(TextChanges({dropped}, name_).apply(text, scratch));
  }

  std::string facts_of_unknown() const {
    std::string fact = definition_.byte_fallback ? "their bytes" : "";
    if (definition_.unknown >= 0)
      fact += fmt::format("{}{}{}", fact.empty() ? "" : ", else ", token_fact(definition_.unknown),
                          definition_.fuse_unknown ? ", once for several in a row" : "");
    return fact.empty() ? "refused" : "become " + fact;
  }

  std::string token_fact(int32_t id) const {
    return fmt::format("{} {}", id, in_quotes(token_bytes_[static_cast<size_t>(id)]));
  }

  std::string normalized(std::string_view text) const {
    std::string made =
        looks_composed(text, definition_.form) ? std::string(text) : compose(text, definition_.form);
    if (changes_.empty()) return made;
    Regex::Scratch scratch;
    return changes_.apply(made, scratch);
  }

  // A text without tokens that are searched for as they are. Bytes that are not UTF-8 are pieces of their
  // own.
  void encode_text(std::string_view text, TextPlace place, Work& work) const {
    const char* const begin = text.data();
    for_each_utf8_run(
        text,
        [&](std::string_view run) {
          encode_utf8(run, run.data() == begin ? place : TextPlace::kWithin, work);
        },
        [&](std::string_view run) { bpe_.encode(run, work.scratch.cache, work.ids, work.left_out); });
  }

  void encode_utf8(std::string_view text, TextPlace place, Work& work) const {
    work.part = text;
    work.normalized.clear();
    work.changed.clear();
    if (!looks_composed(text, definition_.form)) text = work.normalized = compose(text, definition_.form);
    if (!changes_.empty()) {
      work.before_change = text;
      text = work.changed = changes_.apply(text, work.scratch.regex, place != TextPlace::kWithin);
    }
    if (!added_normalized_.finds(work.special)) return encode_normalized(text, place, work);
    added_normalized_.split(
        text, work.special,
        [&](std::string_view part) { encode_normalized(part, place_of(part, text, place), work); },
        [&](const AddedToken& token) { work.ids.push_back(token.id); });
  }

  // A text without any added token
  void encode_normalized(std::string_view text, TextPlace place, Work& work) const {
    work.with_blank.clear();
    const auto on_piece = [&](std::string_view piece) {
      bpe_.encode(piece, work.scratch.cache, work.ids, work.left_out);
    };
    if (definition_.metaspace) {
      splits_.split(text, work.scratch.regex, [&](std::string_view piece) {
        work.before_blank = piece;
        work.with_blank = spaced(piece, puts_blank_before(piece, text, place));
        late_splits_.split(work.with_blank, work.scratch.regex, on_piece);
      });
      return;
    }
    if (definition_.prefix_blank && place != TextPlace::kWithin && !text.starts_with(' ')) {
      work.before_blank = text;
      text = work.with_blank = " " + std::string(text);
    }
    splits_.split(text, work.scratch.regex, on_piece);
  }

  bool puts_blank_before(std::string_view piece, std::string_view text, TextPlace place) const {
    const bool begins = piece.data() == text.data();
    const PrependScheme prepend = present(definition_.metaspace).prepend;
    if (prepend == PrependScheme::kFirst) return begins && place == TextPlace::kStart;
    return prepend == PrependScheme::kAlways && (!begins || place != TextPlace::kWithin);
  }

  // A piece with Metaspace's character for each blank, and before it, unless it begins with one
  std::string spaced(std::string_view piece, bool has_blank_before) const {
    const std::string& blank = present(definition_.metaspace).replacement;
    std::string made;
    made.reserve(piece.size() + piece.size() / 2 + blank.size());
    if (has_blank_before && !piece.starts_with(' ') && !piece.starts_with(blank)) made = blank;
    while (true) {
      const size_t at = piece.find(' ');
      made += piece.substr(0, at);
      if (at == piece.npos) return made;
      made += blank;
      piece.remove_prefix(at + 1);
    }
  }

  TokenizerDefinition definition_;
  Bpe bpe_;
  TextChanges changes_, decoder_changes_;
  PreTokenizer splits_, late_splits_;
  AddedTokenFinder added_, added_normalized_;
  int32_t end_of_text_;
  std::string name_, json_;
  std::vector<std::string> token_bytes_;  // by id, for decode(); "": no token
  std::vector<int32_t> special_;          // ids, ascending
  bool cuts_between_words_ = false;
  mutable Pool<Scratch> pool_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerDefinition definition, int32_t end_of_text,
                                              std::string json, const std::string& where) {
  return std::make_unique<BpeTokenizer>(std::move(definition), end_of_text, std::move(json), where);
}

int32_t token_id(const TokenizerDefinition& definition, std::string_view content) {
  for (const AddedToken& token : definition.added)
    if (token.content == content) return token.id;
  for (const UnreachableToken& token : definition.unreachable)
    if (token.content == content) return token.id;
  const auto found = std::ranges::find(definition.tokens, content);
  return content.empty() || found == definition.tokens.end()
             ? -1
             : static_cast<int32_t>(found - definition.tokens.begin());
}

}  // namespace tessera

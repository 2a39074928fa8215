#include "data/tokenizers/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/nfc.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// A checksum of all that decides between texts and ids, in an order of its own
std::string name_of_content(const TokenizerDefinition& d) {
  Checksum checksum;
  const auto add_text = [&](std::string_view text) {
    const uint64_t bytes = text.size();
    checksum.update(std::as_bytes(std::span(&bytes, 1)));
    checksum.update(std::as_bytes(std::span(text)));
  };
  const auto add_numbers = [&](std::initializer_list<int64_t> numbers) {
    checksum.update(std::as_bytes(std::span(numbers.begin(), numbers.size())));
  };
  add_numbers({static_cast<int64_t>(d.form), d.prefix_blank, d.ignore_merges, std::ssize(d.splits),
               std::ssize(d.added), std::ssize(d.tokens), std::ssize(d.merges)});
  const auto add_rules = [&](const std::vector<SplitRule>& rules) {
    for (const SplitRule& rule : rules) {
      add_numbers({static_cast<int64_t>(rule.behavior), rule.literal, rule.invert});
      add_text(rule.pattern);
    }
  };
  add_rules(d.splits);
  for (const AddedToken& token : d.added) {
    // Whether the text is normalised first matters only where it is.
    add_numbers({token.id, token.special, token.normalized && d.form != NormalForm::kNone, token.single_word,
                 token.strip_left, token.strip_right});
    add_text(token.content);
  }
  for (const std::string& token : d.tokens) add_text(token);
  for (const Merge& merge : d.merges) add_numbers({merge.left, merge.right});
  // What few tokenizers have is named where it is, so that the others keep their checksums.
  if (!d.byte_splits.empty()) {
    add_text("byte_splits");
    add_rules(d.byte_splits);
  }
  if (!d.unreachable.empty()) add_text("unreachable");
  for (const UnreachableToken& token : d.unreachable) {
    add_numbers({token.id});
    add_text(token.content);
  }
  return "bpe-" + checksum.digits();
}

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
        pre_tokenizer_(definition_.splits, where, definition_.byte_splits),
        added_(definition_.added, false, {}),
        added_normalized_(definition_.added, true,
                          [this](std::string_view text) { return normalized(text); }),
        end_of_text_(end_of_text),
        name_(name_of_content(definition_)),
        json_(json.empty() ? tokenizer_json(definition_) : std::move(json)) {
    token_bytes_ = definition_.tokens;
    for (const UnreachableToken& token : definition_.unreachable)
      token_bytes_[static_cast<size_t>(token.id)] = token.content;
    for (const AddedToken& token : definition_.added) {
      const auto id = static_cast<size_t>(token.id);
      if (id >= token_bytes_.size()) token_bytes_.resize(id + 1);
      token_bytes_[id] = token.content;
      if (token.special) special_.push_back(token.id);
    }
    cuts_between_words_ =
        pre_tokenizer_.splits_between_words() && !definition_.prefix_blank &&
        std::ranges::none_of(definition_.added, [this](const AddedToken& token) {
          return may_cross_cut(token, token.normalized ? normalized(token.content) : token.content);
        });
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

  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const override {
    encode(text, special, ids, nullptr);
  }
  int64_t encode_known(std::string_view text, SpecialTokens special,
                       std::vector<int32_t>& ids) const override {
    int64_t left_out = 0;
    encode(text, special, ids, &left_out);
    return left_out;
  }

  std::string decode(std::span<const int32_t> ids, bool show_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      check(id >= 0 && id < vocab_size() &&
                (!token_bytes_[static_cast<size_t>(id)].empty() || has_token(definition_, id)),
            "the id {} has no token in the tokenizer {}, whose ids are 0 to {}", id, name_, vocab_size() - 1);
      if (show_special || !std::ranges::binary_search(special_, id))
        text += token_bytes_[static_cast<size_t>(id)];
    }
    return text;
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
    if (const int32_t missing = bpe_.bytes_without_token())
      facts.push_back({"bytes without a token", fmt::format("{}", missing)});
    facts.push_back({"normal form", definition_.form == NormalForm::kNone ? "none: text is taken as it is"
                                                                          : name_of(definition_.form)});
    if (definition_.prefix_blank) facts.push_back({"before a text", "a blank, if it begins with none"});
    for (const auto& [what, rules] :
         {std::pair("splits", definition_.splits), std::pair("splits of bytes", definition_.byte_splits)})
      for (const SplitRule& rule : rules)
        facts.push_back({what, fmt::format("{} ({}{})", printable(rule.pattern), name_of(rule.behavior),
                                           rule.invert ? ", inverted" : "")});
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
    // What is being encoded: a part of the text, its normal form, and a part of that with a blank before it.
    // The last two are empty where they would be the same.
    std::string_view part = {};
    std::string normalized = {}, with_blank = {};
    std::string_view before_blank = {};  // what `with_blank` was made from
  };

  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids,
              int64_t* left_out) const {
    Pool<Scratch>::Lease lease(pool_);
    // More than most texts need; where texts are appended one by one, twice as much as before.
    if (const size_t most = ids.size() + text.size() / 3; most > ids.capacity())
      ids.reserve(std::max(most, 2 * ids.capacity()));
    Work work{.scratch = *lease, .special = special, .ids = ids, .left_out = left_out};
    try {
      if (!added_.finds(special)) return encode_text(text, work);
      added_.split(
          text, special, [&](std::string_view part) { encode_text(part, work); },
          [&](const AddedToken& token) { ids.push_back(token.id); });
    } catch (const Bpe::NoToken& error) {
      throw ByteWithoutToken(error.what(), line_of(error.place, text, work));
    }
  }

  // The line of `text` that `place` belongs to, which may lie in one of the texts that were made from it. No
  // normal form changes the number of lines.
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
    if (is_in(work.normalized)) {
      count(work.normalized);
      place = work.part.data();
    }
    count(text);
    return line;
  }

  // Whether the token may be found otherwise if a text is cut between an ASCII letter and a blank: it is on
  // both sides, takes the blank, or looks at the letter.
  static bool may_cross_cut(const AddedToken& token, std::string_view content) {
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    for (size_t i = 0; i + 1 < content.size(); ++i)
      if (is_letter(content[i]) && content[i + 1] == ' ') return true;
    return (token.strip_right && is_letter(content.back())) || (token.single_word && content.front() == ' ');
  }

  std::string token_fact(int32_t id) const {
    return fmt::format("{} {}", id, in_quotes(token_bytes_[static_cast<size_t>(id)]));
  }

  std::string normalized(std::string_view text) const {
    return looks_composed(text, definition_.form) ? std::string(text) : compose(text, definition_.form);
  }

  // A text without tokens that are searched for as they are. Bytes that are not UTF-8 are pieces of their
  // own.
  void encode_text(std::string_view text, Work& work) const {
    const char* const begin = text.data();
    for_each_utf8_run(
        text, [&](std::string_view run) { encode_utf8(run, run.data() == begin, work); },
        [&](std::string_view run) { bpe_.encode(run, work.scratch.cache, work.ids, work.left_out); });
  }

  void encode_utf8(std::string_view text, bool begins, Work& work) const {
    work.part = text;
    work.normalized.clear();
    if (!looks_composed(text, definition_.form)) text = work.normalized = compose(text, definition_.form);
    if (!added_normalized_.finds(work.special)) return encode_normalized(text, begins, work);
    added_normalized_.split(
        text, work.special,
        [&](std::string_view part) { encode_normalized(part, begins || part.data() != text.data(), work); },
        [&](const AddedToken& token) { work.ids.push_back(token.id); });
  }

  // `begins`: the text is the first one, or follows an added token.
  void encode_normalized(std::string_view text, bool begins, Work& work) const {
    work.with_blank.clear();
    if (begins && definition_.prefix_blank && !text.starts_with(' ')) {
      work.before_blank = text;
      text = work.with_blank = " " + std::string(text);
    }
    pre_tokenizer_.split(text, work.scratch.regex, [&](std::string_view piece) {
      bpe_.encode(piece, work.scratch.cache, work.ids, work.left_out);
    });
  }

  TokenizerDefinition definition_;
  Bpe bpe_;
  PreTokenizer pre_tokenizer_;
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

#include "data/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// PCRE2's own \s has U+180E as well.
constexpr const char* kBlanks =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr size_t kFirstStack = 32 << 10, kLargestStack = 64 << 20;  // bytes

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Rewrites an expression for PCRE2, and refuses what is not known.
class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : rest_(pattern), where_(where) {
    while (!rest_.empty()) step();
    check(!in_class_, "{}: the regular expression {} has a class without its ]", where_, in_quotes(pattern));
  }
  const std::string& text() const { return out_; }

 private:
  bool next_is(std::string_view text) const { return rest_.starts_with(text); }

  void take(size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }

  [[noreturn]] void refuse(size_t bytes) const {
    const std::string_view found = rest_.substr(0, bytes);
    fail("{}: the regular expression has {}, which is not known{}; known: see docs/tokenizers.md", where_,
         in_quotes(found), in_class_ ? " in a class" : "");
  }

  void step() {
    const char c = rest_[0];
    if (c == '\\') return escape();
    if (in_class_) {
      if (c == '[' || next_is("&&")) refuse(2);
      if (c == ']') in_class_ = false;
      return take(1);
    }
    if (c == '^' || c == '$') {  // of lines, which is what they are in Oniguruma
      out_ += "(?m:";
      take(1);
      out_ += ')';
    } else if (c == '[') {
      take(next_is("[^") ? 2 : 1);
      if (next_is("]")) refuse(1);
      in_class_ = true;
    } else if (c == '(') {
      group();
    } else if (c == '{') {
      repeat();
    } else if (c == ']') {
      out_ += '\\';
      take(1);
    } else {
      take(1);
    }
  }

  void escape() {
    if (rest_.size() < 2) refuse(1);
    const char c = rest_[1];
    if (c == 's' || c == 'S') {
      if (in_class_ && c == 'S') refuse(2);
      out_ += in_class_ ? kBlanks : fmt::format("[{}{}]", c == 'S' ? "^" : "", kBlanks);
      rest_.remove_prefix(2);
    } else if (c == 'p' || c == 'P') {
      static constexpr std::array<std::string_view, 37> kCategories{
          "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl",
          "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm",
          "So", "Z",  "Zl", "Zp", "Zs", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};
      const size_t end = rest_.find('}');
      if (rest_.size() < 3 || rest_[2] != '{' || end == rest_.npos) refuse(8);
      if (std::ranges::find(kCategories, rest_.substr(3, end - 3)) == kCategories.end()) refuse(end + 1);
      take(end + 1);
    } else {
      const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c);
      if ((alphanumeric && std::string_view("dDrnt").find(c) == std::string_view::npos) ||
          static_cast<unsigned char>(c) >= 0x80)
        refuse(2);
      take(2);
    }
  }

  void group() {
    if (next_is("(*")) refuse(2);
    if (!next_is("(?")) return take(1);
    for (const std::string_view head : {"(?:", "(?i:", "(?>", "(?=", "(?!", "(?<=", "(?<!"})
      if (next_is(head)) return take(head.size());
    refuse(4);
  }

  void repeat() {
    size_t end = 1;
    while (end < rest_.size() && (is_digit(rest_[end]) || rest_[end] == ',')) ++end;
    const std::string_view inner = rest_.substr(1, end - 1);
    const size_t commas = static_cast<size_t>(std::ranges::count(inner, ','));
    if (end == rest_.size() || rest_[end] != '}' || inner.empty() || inner[0] == ',' || commas > 1)
      refuse(end + 2);
    if (end + 1 < rest_.size() && rest_[end + 1] == '+')
      fail(
          "{}: the regular expression has {}, which is read in two ways: Oniguruma, and so Hugging Face's "
          "library, repeats {} once or more; to tiktoken it is possessive, and never gives back what it "
          "took. Expected one that says which: (?:...{})+ or (?>...{})",
          where_, in_quotes(rest_.substr(0, end + 2)), rest_.substr(0, end + 1), rest_.substr(0, end + 1),
          rest_.substr(0, end + 1));
    take(end + 1);
  }

  std::string_view rest_;
  const std::string& where_;
  std::string out_;
  bool in_class_ = false;
};

std::string message_of(int code) {
  char text[256];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Code {
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code = nullptr;
  bool is_compiled = false;  // to machine code
  std::string where, pattern;
};

struct Regex::Scratch::Parts {
  ~Parts() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);  // one pair: the whole match
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = nullptr;
};

Regex::Scratch::Scratch() : parts_(std::make_unique<Parts>()) {
  check(parts_->match != nullptr && parts_->context != nullptr, "no memory for regular expressions");
}
Regex::Scratch::~Scratch() = default;
Regex::Scratch::Scratch(Scratch&&) noexcept = default;

Regex::Regex(const std::string& pattern, const std::string& where, bool literal)
    : code_(std::make_unique<Code>()) {
  code_->where = where;
  code_->pattern = pattern;
  const std::string text = literal ? pattern : Translation(pattern, where).text();
  const uint32_t options = PCRE2_UTF | PCRE2_UCP;
  int error = 0;
  size_t at = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // which "." does not match
  code_->code = pcre2_compile(bytes_of(text), text.size(),
                              literal ? PCRE2_UTF | PCRE2_LITERAL : options | PCRE2_NEVER_BACKSLASH_C, &error,
                              &at, context.get());
  check(code_->code != nullptr, "{}: the regular expression {} is not valid: {}", where, in_quotes(pattern),
        message_of(error));
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  check(may_be_empty == 0,
        "{}: the regular expression {} may match nothing; expected one that always matches text", where,
        in_quotes(pattern));
  // Without it, on a machine that forbids code made at run time, the search is slower and the same.
  code_->is_compiled = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::Regex(const std::string& pattern, const std::string& where) : Regex(pattern, where, false) {}
Regex Regex::literal(const std::string& text, const std::string& where) { return {text, where, true}; }
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from, Scratch& scratch) const {
  Scratch::Parts& parts = *scratch.parts_;
  const auto search = [&] {
    return (code_->is_compiled ? pcre2_jit_match : pcre2_match)(
        code_->code, bytes_of(text), text.size(), from, PCRE2_NO_UTF_CHECK, parts.match, parts.context);
  };
  int found = search();
  if (found == PCRE2_ERROR_JIT_STACKLIMIT && parts.stack == nullptr) {
    parts.stack = pcre2_jit_stack_create(kFirstStack, kLargestStack, nullptr);
    pcre2_jit_stack_assign(parts.context, nullptr, parts.stack);
    found = search();
  }
  if (found == PCRE2_ERROR_NOMATCH) return {};
  if (found < 0)
    fail("{}: the regular expression {} fails on a text of {} bytes: {}", code_->where,
         in_quotes(code_->pattern), text.size(), message_of(found));
  const size_t* ends = pcre2_get_ovector_pointer(parts.match);
  return Match{ends[0], ends[1]};
}

}  // namespace tessera

#include "data/chat/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "data/chat/text_parts.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string with_plain_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i)
    if (source[i] != '\r')
      out += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      out += '\n';
  if (out.ends_with('\n')) out.pop_back();  // the one that ends the last line
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& name)
      : owned_(std::move(source)), rest_(owned_), name_(name) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      const size_t tag = first_tag();
      add_data(tag);
      if (rest_.empty()) break;
      const char kind = rest_[1];
      if (kind == '#')
        skip_comment();
      else if (kind == '%' && named_tag_end("raw", true) > 0)
        add_raw();
      else
        add_tag(kind == '%');
    }
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { fail("{}:{}: {}", name_, line_, why); }

  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void skip(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(bytes), '\n'));
    if (bytes > 0) after_newline_ = rest_[bytes - 1] == '\n';
    rest_.remove_prefix(bytes);
  }

  size_t first_tag() const {
    size_t at = 0;
    while ((at = rest_.find('{', at)) != rest_.npos) {
      if (at + 1 < rest_.size() && (rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#'))
        return at;
      ++at;
    }
    return rest_.size();
  }

  // The text up to the tag at `tag`, without the blanks that the tag takes
  void add_data(size_t tag) {
    std::string_view data = rest_.substr(0, tag);
    const bool is_tag = tag < rest_.size();
    const char sign = is_tag && tag + 2 < rest_.size() ? rest_[tag + 2] : ' ';
    if (is_tag && sign == '-') {
      data = data.substr(0, data.size() - blanks_at_end(data));
    } else if (is_tag && sign != '+' && rest_[tag + 1] != '{') {  // the indent of a tag that begins its line
      const size_t line = data.rfind('\n') + 1;
      if ((line > 0 || after_newline_) && blanks_at_end(data.substr(line)) == data.size() - line)
        data = data.substr(0, line);
    }
    if (!data.empty()) add(Kind::kData, std::string(data));
    skip(tag);
  }

  // Past the end of a tag, which is at `at`: "-%}", "+%}" or "%}"
  void skip_end(size_t at, char sign, bool takes_newline) {
    const size_t end = at + (sign == ' ' ? 2 : 3);
    skip(end);
    if (sign == '-')
      skip(blanks_at_start(rest_));
    else if (sign == ' ' && takes_newline && rest_.starts_with('\n'))
      skip(1);
  }

  void skip_comment() {
    const size_t end = rest_.find("#}", 2);
    if (end == rest_.npos) refuse("a comment {# has no end #}");
    const char before = end > 2 ? rest_[end - 1] : ' ';
    const char sign = before == '-' || before == '+' ? before : ' ';
    skip_end(sign == ' ' ? end : end - 1, sign, true);
  }

  // The bytes of the tag {% name %} here; 0: there is another one
  size_t named_tag_end(std::string_view name, bool begins) const {
    size_t at = 2;
    if (at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+')) ++at;
    at += blanks_at_start(rest_.substr(at));
    if (!rest_.substr(at).starts_with(name)) return 0;
    at += name.size();
    at += blanks_at_start(rest_.substr(at));
    if (at < rest_.size() && (rest_[at] == '-' || (rest_[at] == '+' && !begins))) ++at;
    return rest_.substr(at).starts_with("%}") ? at + 2 : 0;
  }

  // {% raw %}: text up to {% endraw %}, tags among it
  void add_raw() {
    const size_t begin = named_tag_end("raw", true);
    const bool strips = rest_[begin - 3] == '-';
    skip(begin);
    if (strips) skip(blanks_at_start(rest_));
    const std::string_view all = rest_;
    for (size_t at = 0; (at = all.find("{%", at)) != all.npos; ++at) {
      rest_ = all.substr(at);
      const size_t end = named_tag_end("endraw", false);
      rest_ = all;
      if (end == 0) continue;
      add_data(at);
      const char sign = rest_[end - 3];
      return skip_end(end - (sign == '-' || sign == '+' ? 3 : 2), sign == '-' || sign == '+' ? sign : ' ',
                      true);
    }
    refuse("{% raw %} has no {% endraw %}");
  }

  void add_tag(bool is_block) {
    add(is_block ? Kind::kBlockBegin : Kind::kValueBegin, "");
    skip(2);
    if (!rest_.empty() && (rest_[0] == '-' || rest_[0] == '+')) skip(1);
    const std::string_view end = is_block ? "%}" : "}}";
    std::vector<char> open;  // brackets, within which }} ends dictionaries
    while (true) {
      skip(blanks_at_start(rest_));
      if (rest_.empty()) refuse(is_block ? "a tag {% has no end %}" : "a tag {{ has no end }}");
      const bool with_sign =
          rest_.size() > 2 && (rest_[0] == '-' || (is_block && rest_[0] == '+')) && rest_.substr(1, 2) == end;
      if (open.empty() && (with_sign || rest_.starts_with(end))) {
        add(is_block ? Kind::kBlockEnd : Kind::kValueEnd, "");
        return skip_end(0, with_sign ? rest_[0] : ' ', is_block);
      }
      add_word(open);
    }
  }

  void add_word(std::vector<char>& open) {
    const char c = rest_[0];
    if (c == '"' || c == '\'') return add_literal(c);
    if (is_digit(c)) return add_number();
    if (begins_name(c)) {
      size_t end = 1;
      while (end < rest_.size() && (begins_name(rest_[end]) || is_digit(rest_[end]))) ++end;
      return add_word_of(Kind::kName, end);
    }
    static constexpr std::array<std::string_view, 24> kSigns{"**", "//", "==", "!=", "<=", ">=", "+", "-",
                                                             "*",  "/",  "%",  "~",  "<",  ">",  "=", "|",
                                                             ".",  ",",  ":",  "(",  ")",  "[",  "]", "{"};
    for (const std::string_view sign : kSigns)
      if (rest_.starts_with(sign)) {
        if (sign == "(" || sign == "[" || sign == "{") open.push_back(sign[0]);
        if (sign == ")" || sign == "]") close(open, sign == ")" ? '(' : '[');
        add(Kind::kSign, std::string(sign));
        return skip(sign.size());
      }
    if (c != '}')
      refuse(fmt::format("the character {} begins nothing that is known", in_quotes(rest_.substr(0, 1))));
    close(open, '{');
    add(Kind::kSign, "}");
    skip(1);
  }

  void close(std::vector<char>& open, char opening) const {
    if (open.empty() || open.back() != opening) refuse("a closing bracket has no opening one");
    open.pop_back();
  }

  // As Jinja: 1_000, 0x1F, 0b1, 0o7, 1.5, 1e3. After a dot only digits: a.0.1
  void add_number() {
    const auto is_in = [&](size_t at, std::string_view known) {
      return at < rest_.size() && known.find(rest_[at]) != known.npos;
    };
    const std::string_view digits = "0123456789";
    const auto digits_from = [&](size_t at, std::string_view known) {
      while (is_in(at, known) || (is_in(at, "_") && is_in(at + 1, known))) ++at;
      return at;
    };
    const std::string_view of_base = is_in(1, "xX")   ? "0123456789abcdefABCDEF"
                                     : is_in(1, "bB") ? "01"
                                     : is_in(1, "oO") ? "01234567"
                                                      : "";
    if (rest_[0] == '0' && !of_base.empty() && (is_in(2, of_base) || (is_in(2, "_") && is_in(3, of_base))))
      return add_word_of(Kind::kWhole, digits_from(2, of_base));
    size_t end = digits_from(0, digits);
    const bool follows_dot =
        !tokens_.empty() && tokens_.back().kind == Kind::kSign && tokens_.back().text == ".";
    bool real = false;
    if (!follows_dot && is_in(end, ".") && is_in(end + 1, digits)) {
      real = true;
      end = digits_from(end + 1, digits);
    }
    const size_t exponent = end + (is_in(end + 1, "+-") ? 2 : 1);
    if (!follows_dot && is_in(end, "eE") && is_in(exponent, digits)) {
      real = true;
      end = digits_from(exponent, digits);
    }
    add_word_of(real ? Kind::kReal : Kind::kWhole, end);
  }
  void add_word_of(Kind kind, size_t bytes) {
    add(kind, std::string(rest_.substr(0, bytes)));
    skip(bytes);
  }

  void add_literal(char quote) {
    std::string text;
    for (size_t at = 1; at < rest_.size(); ++at) {
      if (rest_[at] == quote) {
        add(Kind::kText, std::move(text));
        return skip(at + 1);
      }
      if (rest_[at] == '\\' && at + 1 < rest_.size())
        at = add_escape(at, text);
      else
        text += rest_[at];
    }
    refuse("a text has no closing quote");
  }

  // As in Python. Returns the last byte of the escape that begins at `at`.
  size_t add_escape(size_t at, std::string& text) const {
    const char c = rest_[at + 1];
    static constexpr std::string_view kNames = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t known = kNames.find(c); known != kNames.npos) {
      text += kMeanings[known];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string number(rest_.substr(at + 2, digits));
      const bool fine = number.size() == digits && std::ranges::all_of(number, [](char d) {
                          return std::isxdigit(static_cast<unsigned char>(d));
                        });
      if (!fine) refuse(fmt::format("\\{} needs {} hexadecimal digits", c, digits));
      const auto code = static_cast<uint32_t>(std::stoul(number, nullptr, 16));
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        refuse(fmt::format("\\{}{} is no character", c, number));
      append_utf8(text, code);
      return at + 1 + digits;
    }
    if (c >= '0' && c <= '7') {
      size_t end = at + 1;
      uint32_t code = 0;
      for (; end < rest_.size() && end < at + 4 && rest_[end] >= '0' && rest_[end] <= '7'; ++end)
        code = code * 8 + static_cast<uint32_t>(rest_[end] - '0');
      append_utf8(text, code);
      return end - 1;
    }
    if (c == 'N') refuse("the escape \\N is not supported; write the character itself");
    text += '\\';  // no escape
    return at;
  }

  const std::string owned_;
  std::string_view rest_;
  const std::string& name_;
  std::vector<Token> tokens_;
  int line_ = 1;
  bool after_newline_ = true;  // what was read last ended with one
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  return Lexer(with_plain_newlines(source), name).run();
}

}  // namespace tessera::jinja

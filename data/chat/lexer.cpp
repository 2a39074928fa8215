#include "data/chat/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "data/chat/text_methods.h"
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
      add(Kind::kName, std::string(rest_.substr(0, end)));
      return skip(end);
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

  void add_number() {
    size_t end = 0;
    const auto skip_digits = [&] {
      while (end < rest_.size() && (is_digit(rest_[end]) || rest_[end] == '_')) ++end;
    };
    skip_digits();
    bool real = false;
    if (end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1])) {
      real = true;
      ++end;
      skip_digits();
    }
    if (end + 1 < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      const size_t sign = end + (rest_[end + 1] == '+' || rest_[end + 1] == '-' ? 2 : 1);
      if (sign < rest_.size() && is_digit(rest_[sign])) {
        real = true;
        end = sign;
        skip_digits();
      }
    }
    std::string digits(rest_.substr(0, end));
    std::erase(digits, '_');
    add(real ? Kind::kReal : Kind::kWhole, std::move(digits));
    skip(end);
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
      append_utf8(text, static_cast<uint32_t>(std::stoul(number, nullptr, 16)));
      return at + 1 + digits;
    }
    if (is_digit(c)) refuse("an escape in octal digits is not supported; write it as \\x and two digits");
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

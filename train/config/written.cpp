#include "train/config/written.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/check.h"
#include "kernels/base/split.h"
#include "kernels/base/text.h"
#include "kernels/base/words.h"

namespace tessera {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <class T>
std::errc parse(std::string_view text, T& out) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const std::string_view digits = text.substr(text.starts_with('-'));
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return std::errc::invalid_argument;
  if (digits.empty() || !(is_digit(digits[0]) || digits[0] == '.'))
    return std::errc::invalid_argument;  // inf, nan
  T value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::errc::invalid_argument;
  if (error == std::errc{}) out = value;
  return error;
}

}  // namespace

void refuse(const Written& value, const std::string& expected, const std::string& advice) {
  fail("{}: {} must be {}, found {}{}", value.where, value.key, expected, value.describe(), advice);
}

std::errc parse_number(std::string_view text, int64_t& out) { return parse(text, out); }
std::errc parse_number(std::string_view text, double& out) { return parse(text, out); }

std::string Written::describe() const {
  double number = 0;
  switch (kind) {
    case Kind::kNothing:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
    case Kind::kQuoted:
      return "the text " + in_quotes(text);
    case Kind::kPlain:
      return parse_number(text, number) == std::errc{} ? text : in_quotes(text);
  }
  fail("a Written of unknown kind {}", static_cast<int>(kind));
}

std::vector<std::string> entries_of(const Written& value, const std::string& expected) {
  const bool is_text = value.kind == Written::Kind::kPlain || value.kind == Written::Kind::kQuoted;
  if (is_text && value.text == "none") return {};
  std::vector<std::string> texts;
  if (is_text) {
    std::string_view text = value.text;
    if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
    for (const std::string_view one : split(text, ','))
      texts.emplace_back(one.substr(std::min(one.find_first_not_of(' '), one.size())));
  }
  for (const Written& one : value.values)
    texts.push_back(one.kind == Written::Kind::kPlain ? one.text : one.describe());
  if (texts.empty() || value.kind == Written::Kind::kMap) refuse(value, expected);
  return texts;
}

size_t read_word(const Written& value, const std::vector<std::string_view>& words) {
  std::vector<std::string_view> all = words;
  if (!value.also.empty()) all.insert(all.begin(), value.also);
  if (value.kind != Written::Kind::kPlain && value.kind != Written::Kind::kQuoted)
    refuse(value, join_words(all));
  const auto found = std::find(words.begin(), words.end(), value.text);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  // A word of three letters is near to too much: "gpu" does not mean "cpu".
  const auto near = value.text.size() < 4 ? std::vector<std::string_view>() : nearest(all, value.text);
  refuse(value, join_words(all), near.empty() ? "" : "; " + did_you_mean(near));
}

std::vector<size_t> read_words(const Written& value, const std::vector<std::string_view>& words) {
  std::vector<size_t> places;
  if (value.text == "none") return places;
  std::vector<std::string_view> known = words;
  known.insert(known.begin(), "none");
  if (value.kind == Written::Kind::kList || value.text.find_first_of(", ") != value.text.npos)
    refuse(value, join_words(known),
           fmt::format("; several have a plus between them: {}+{}", words[0], words[1]));
  Written one = value;
  for (const std::string_view word : split(value.text, '+')) {
    one.text = word;
    const bool alone = one.text == "none" || (!value.also.empty() && one.text == value.also);
    check(!alone, "{}: {} must be \"{}\" alone, or words with a plus between them, found {}", value.where,
          value.key, one.text, value.describe());
    const size_t place = read_word(one, known);
    check(std::find(places.begin(), places.end(), place - 1) == places.end(),
          "{}: {} names {} twice, found {}", value.where, value.key, one.text, value.describe());
    places.push_back(place - 1);
  }
  return places;
}

}  // namespace tessera

#include "data/chat/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "data/chat/format_spec.h"
#include "data/chat/letters.h"
#include "data/chat/text_parts.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(blanks_at_start(text));
  text.remove_suffix(blanks_at_end(text));
  return text;
}
// Digits of all scripts become ASCII's.
std::string in_plain_digits(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto point = first_code_point(text.substr(at, 4)).value_or(CodePoint{.code = 0xFFFD, .bytes = 1});
    const int digit = point.code < 0x80 ? -1 : decimal_of(point.code);
    out += digit < 0 ? text.substr(at, point.bytes)
                     : std::string_view("0123456789").substr(static_cast<size_t>(digit), 1);
    at += point.bytes;
  }
  return out;
}
// Takes the sign at the beginning. Whether it is a minus
bool take_sign(std::string_view& text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  return negative;
}
// "1_000": without the marks; none where one stands beside no digit
std::optional<std::string> without_marks(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
    };
    if (text[i] == '_' && !(i > 0 && is_digit(i - 1) && is_digit(i + 1))) return std::nullopt;
    if (text[i] != '_') out += text[i];
  }
  return out;
}

}  // namespace

Value whole_of_digits(std::string_view digits, bool negative) {
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
  const std::string text = (negative ? "-" : "") + std::string(digits);
  int64_t whole = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), whole);
  return read.ec == std::errc() ? Value(whole) : Value(BigInteger{text == "-0" ? "0" : text});
}

std::optional<Value> whole_in(std::string_view given, int64_t base) {
  const std::string plain = in_plain_digits(trimmed(given));
  std::string_view text = plain;
  const bool negative = take_sign(text);
  const std::string_view prefix = base == 16 ? "xX" : base == 8 ? "oO" : base == 2 ? "bB" : "";
  if (text.size() > 2 && text[0] == '0' && prefix.find(text[1]) != prefix.npos) {
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  }
  const auto digits = without_marks(text);
  if (!digits || digits->empty()) return std::nullopt;
  const auto is_digit = [&](char c) {
    const int value = c >= '0' && c <= '9'                          ? c - '0'
                      : std::isalpha(static_cast<unsigned char>(c)) ? (c | 0x20) - 'a' + 10
                                                                    : 99;
    return value < base;
  };
  if (!std::ranges::all_of(*digits, is_digit)) return std::nullopt;
  if (base == 10) return whole_of_digits(*digits, negative);
  int64_t whole = 0;
  const auto read =
      std::from_chars(digits->data(), digits->data() + digits->size(), whole, static_cast<int>(base));
  check(read.ec == std::errc(), "an integer of more than 64 bits in base {} is not supported", base);
  return Value(negative ? -whole : whole);
}

std::optional<double> real_in(std::string_view given) {
  const std::string plain = in_plain_digits(trimmed(given));
  std::string_view text = plain;
  const bool negative = take_sign(text);
  const auto digits = without_marks(text);
  if (!digits || digits->empty() || (*digits)[0] == '-' || (*digits)[0] == '+') return std::nullopt;
  std::string lower = *digits;
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const bool named = lower == "inf" || lower == "infinity" || lower == "nan";
  if (!named && lower.find_first_not_of("0123456789.e+-") != lower.npos) return std::nullopt;
  double real = 0;
  const auto read = std::from_chars(lower.data(), lower.data() + lower.size(), real);
  if (read.ptr != lower.data() + lower.size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) real = std::strtod(lower.c_str(), nullptr);  // 0 or infinity
  return negative ? -real : real;
}

Value whole_part(double number) {
  check(std::isfinite(number), "a float that is {} is no integer", std::isnan(number) ? "nan" : "infinite");
  const std::string digits = fixed(std::trunc(std::fabs(number)), 0);
  return whole_of_digits(digits, number < 0);
}

}  // namespace tessera::jinja

#include "data/chat/format_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "data/chat/writing.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMostDigits = 1000;  // after a point

std::string printed(double x, char type, int64_t precision, bool alternative) {
  check(precision <= kMostDigits, "a format has {} digits after the point; at most {} are supported",
        precision, kMostDigits);
  const std::array<char, 6> format{'%',
                                   alternative ? '#' : '.',
                                   alternative ? '.' : '*',
                                   alternative ? '*' : type,
                                   alternative ? type : '\0',
                                   '\0'};
  std::string out(static_cast<size_t>(precision) + 400, '\0');
  out.resize(static_cast<size_t>(
      std::snprintf(out.data(), out.size(), format.data(), static_cast<int>(precision), x)));
  return out;
}

std::string digits_in_base(uint64_t number, unsigned base, bool upper) {
  const std::string_view all = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits += all[number % base];
  } while ((number /= base) > 0);
  std::ranges::reverse(digits);
  return digits;
}

std::string grouped(const std::string& digits, char mark, size_t size) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % size == 0) out += mark;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

}  // namespace

Text padded(const Text& body, const std::string& sign, const Spec& spec, char usual_align) {
  const int64_t length = body.length() + std::ssize(sign);
  const auto missing = static_cast<size_t>(std::max<int64_t>(spec.width - length, 0));
  const char align = spec.align ? spec.align : usual_align;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text out;
  const auto fill = [&](size_t count) { out.append(repeated(spec.fill, static_cast<int64_t>(count))); };
  if (align == '=') out.append(sign, kTemplate);
  fill(left);
  if (align != '=') out.append(sign, kTemplate);
  out.append(body);
  fill(missing - left);
  return out;
}

std::string sign_of(bool negative, char sign) {
  return negative ? "-" : sign == '-' ? "" : std::string(1, sign);
}

Text whole_number(const Value& value, const Spec& spec) {
  const bool negative = value.big() ? value.big()->digits[0] == '-' : value.whole() < 0;
  const uint64_t size = value.big() ? 0
                        : negative  ? uint64_t{0} - static_cast<uint64_t>(value.whole())
                                    : static_cast<uint64_t>(value.whole());
  const char type = spec.type ? spec.type : 'd';
  check(!value.big() || type == 'd' || type == 'n',
        "an integer of more than 64 bits in base 2, 8 or 16 is not supported");
  const unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
  std::string digits =
      value.big() ? value.big()->digits.substr(negative ? 1 : 0) : digits_in_base(size, base, type == 'X');
  std::string sign = sign_of(negative, spec.sign);
  if (spec.alternative && base != 10) sign += std::string("0") + type;
  if (spec.grouping) digits = grouped(digits, spec.grouping, base == 10 ? 3 : 4);
  return padded(Text(digits), sign, spec, '>');
}

Text real_number(double x, const Spec& spec) {
  const bool negative = std::signbit(x) && !std::isnan(x);
  const double size = std::fabs(x);
  char type = spec.type;
  std::string digits;
  if (!std::isfinite(size)) {
    digits = std::isnan(size) ? "nan" : "inf";
    if (type == 'F' || type == 'E' || type == 'G') digits = std::isnan(size) ? "NAN" : "INF";
    if (type == '%') digits += "%";
  } else if (type == '%') {
    digits = printed(size * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.alternative) + "%";
  } else if (type == 0 && spec.precision < 0) {
    digits = digits_of(size);
  } else if (type == 0) {  // as g, with at least one digit after the point
    const int64_t precision = std::max<int64_t>(spec.precision, 1);
    const std::string scientific = printed(size, 'e', precision - 1, false);
    const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
    digits = printed(size, 'g', precision, false);
    if (exponent >= precision - 1 && digits.find('e') == digits.npos) {
      std::string mantissa = scientific.substr(0, scientific.find('e'));
      if (mantissa.find('.') != mantissa.npos) {
        while (mantissa.ends_with('0')) mantissa.pop_back();
        if (mantissa.ends_with('.')) mantissa.pop_back();
      }
      digits = mantissa + scientific.substr(scientific.find('e'));
    } else if (digits.find_first_of(".e") == digits.npos) {
      digits += ".0";
    }
  } else {
    if (type == 'n') type = 'g';
    digits = printed(size, type, spec.precision < 0 ? 6 : spec.precision, spec.alternative);
  }
  if (spec.grouping) digits = grouped(digits, spec.grouping, 3);
  return padded(Text(digits), sign_of(negative, spec.sign), spec, '>');
}

std::string fixed(double x, int digits) { return printed(x, 'f', digits, false); }

}  // namespace tessera::jinja

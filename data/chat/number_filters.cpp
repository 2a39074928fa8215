#include <array>
#include <cmath>
#include <cstdlib>

#include "data/chat/arguments.h"
#include "data/chat/filter_table.h"
#include "data/chat/format_spec.h"
#include "data/chat/numbers.h"
#include "data/chat/operators.h"
#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

Value absolute(const Value& of, const Arguments& a) {
  bind(a, "abs", {});
  check_defined(of);
  if (of.big()) return of.big()->digits[0] == '-' ? negative(of) : of;
  check(of.is_number(), "abs expects a number, and a {} is given", of.type_name());
  if (of.real()) return std::fabs(*of.real());
  return of.whole() < 0 ? negative(of) : Value(of.whole());
}

Value to_whole(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "int", {"default", "base"});
  check_defined(of);
  const int64_t base = whole_of(bound[1], "int", 10);
  check(base >= 2 && base <= 36, "int: the base {} is not supported", base);
  const Value fallback = bound[0] ? *bound[0] : Value(int64_t{0});
  if (of.is_whole()) return of.whole();
  if (of.big()) return of;
  if (of.real()) return std::isnan(*of.real()) ? fallback : whole_part(*of.real());
  if (!of.text()) return fallback;
  if (const auto whole = whole_in(of.text()->bytes(), base)) return *whole;
  const auto real = real_in(of.text()->bytes());
  return real && std::isfinite(*real) ? whole_part(*real) : fallback;
}

Value to_real(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "float", {"default"});
  check_defined(of);
  if (of.is_number()) return of.number();
  if (of.big()) return std::strtod(of.big()->digits.c_str(), nullptr);
  if (of.text())
    if (const auto real = real_in(of.text()->bytes())) return *real;
  return bound[0] ? *bound[0] : Value(0.0);
}

// To the nearest, and a tie to the even digit, of a whole number with `zeros` zeros at its end
Value rounded_whole(int64_t number, int64_t zeros) {
  if (zeros > 18) return int64_t{0};
  int64_t unit = 1;
  for (; zeros > 0; --zeros) unit *= 10;
  const int64_t rest = number % unit, size = std::abs(rest), floor = number - rest;
  const bool up = size > unit - size || (size == unit - size && (floor / unit) % 2 != 0);
  return floor + (up ? (number < 0 ? -unit : unit) : 0);
}

Value round_filter(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "round", {"precision", "method"});
  check_defined(of);
  if (of.big() && whole_of(bound[0], "round", 0) >= 0 && !bound[1]) return of;
  check(of.is_number(), "round expects a number, and a {} is given", of.type_name());
  const int64_t precision = whole_of(bound[0], "round", 0);
  check(std::abs(precision) <= 300, "round: a precision of {} is not supported", precision);
  const std::string method = bound[1] ? text_of(bound[1], "round").bytes() : "common";
  check(method == "common" || method == "ceil" || method == "floor",
        "round: the method is common, ceil or floor");
  if (method != "common") {
    const Value scale = binary("**", int64_t{10}, precision);
    const double scaled = binary("*", of, scale).number();
    check(std::isfinite(scaled), "round: the number is not finite");
    return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale.number();
  }
  if (of.is_whole()) return precision >= 0 ? Value(of.whole()) : rounded_whole(of.whole(), -precision);
  if (!std::isfinite(*of.real())) return of;
  if (precision >= 0) return std::strtod(fixed(*of.real(), static_cast<int>(precision)).c_str(), nullptr);
  const double unit = std::pow(10, static_cast<double>(-precision));
  return std::nearbyint(*of.real() / unit) * unit;
}

Value filesizeformat(const Value& of, const Arguments& a) {
  const bool binary_units = truth_of(bind(a, "filesizeformat", {"binary"})[0]);
  const Value number = to_real(of, {});
  const double bytes = number.number(), base = binary_units ? 1024 : 1000;
  if (bytes == 1) return "1 Byte";
  if (bytes < base) return Text(fmt::format("{} Bytes", static_cast<int64_t>(bytes)));
  static constexpr std::array kUnits{"k", "M", "G", "T", "P", "E", "Z", "Y"};
  double unit = base;
  size_t i = 0;
  for (; i + 1 < kUnits.size() && bytes >= unit * base; ++i) unit *= base;
  const std::string name =
      binary_units ? (i == 0 ? "K" : kUnits[i]) + std::string("iB") : kUnits[i] + std::string("B");
  return Text(fixed(base * bytes / (unit * base), 1) + " " + name);
}

}  // namespace

const FilterTable& number_filters() {
  static const FilterTable kFilters{
      {"abs", absolute},       {"filesizeformat", filesizeformat}, {"float", to_real}, {"int", to_whole},
      {"round", round_filter},
  };
  return kFilters;
}

}  // namespace tessera::jinja

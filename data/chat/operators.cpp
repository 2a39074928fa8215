#include "data/chat/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/chat/formatting.h"
#include "data/chat/loop.h"
#include "data/chat/numbers.h"
#include "data/chat/writing.h"
#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

void check_fits(bool fits) {
  check(fits, "an integer is too large: arithmetic beyond 64 bits is not supported");
}

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

double modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}
double floor_of(double a, double b) {
  const double rest = std::fmod(a, b);
  double parts = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) parts -= 1;
  if (parts == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(parts);
  return parts - whole > 0.5 ? whole + 1 : whole;
}

Value power(const Value& left, const Value& right) {
  if (left.is_whole() && right.is_whole() && right.whole() >= 0) {
    const int64_t base = left.whole();
    int64_t made = 1, exponent = right.whole();
    if (base == 0 || base == 1) return exponent == 0 ? int64_t{1} : base;
    if (base == -1) return exponent % 2 == 0 ? int64_t{1} : int64_t{-1};
    for (; exponent > 0; --exponent) check_fits(!__builtin_mul_overflow(made, base, &made));
    return made;
  }
  const double a = left.number(), b = right.number(), made = std::pow(a, b);
  check(a != 0 || b >= 0, "0 to a negative power");
  check(a >= 0 || b == std::floor(b), "a root of a negative number is complex: that is not supported");
  check(std::isfinite(made) || !std::isfinite(a) || !std::isfinite(b), "a power is too large for a float");
  return made;
}

Value arithmetic(std::string_view sign, const Value& left, const Value& right) {
  if (sign == "**") return power(left, right);
  const bool divides = sign[0] == '/' || sign[0] == '%';
  check(!divides || right.number() != 0, "division by zero");
  if (left.is_whole() && right.is_whole()) {
    const int64_t a = left.whole(), b = right.whole();
    int64_t made = 0;
    if (sign == "/") return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
    check_fits(sign == "+"   ? !__builtin_add_overflow(a, b, &made)
               : sign == "-" ? !__builtin_sub_overflow(a, b, &made)
               : sign == "*" ? !__builtin_mul_overflow(a, b, &made)
                             : a != std::numeric_limits<int64_t>::min() || b != -1);
    if (sign == "//") return floor_of(a, b);
    if (sign == "%") return a - floor_of(a, b) * b;
    return made;
  }
  const double a = left.number(), b = right.number();
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "/") return a / b;
  return sign == "//" ? floor_of(a, b) : modulo(a, b);
}

Value joined(Form form, const List& a, const List& b) {
  List list;
  list.reserve(a.size() + b.size());
  Budget::spend_elements(a.size() + b.size());
  list.insert(list.end(), a.begin(), a.end());
  list.insert(list.end(), b.begin(), b.end());
  return {form, std::move(list)};
}

Value repeated(Form form, const List& list, int64_t times) {
  List made;
  for (int64_t i = 0; !list.empty() && i < times; ++i) {
    Budget::spend(1);
    Budget::spend_elements(list.size());
    made.insert(made.end(), list.begin(), list.end());
  }
  return {form, std::move(made)};
}

}  // namespace

Value binary(std::string_view sign, const Value& left, const Value& right) {
  if (sign == "~") {
    Text text = to_text(left);
    text.append(to_text(right));
    return text;
  }
  check_defined(left);
  if (sign == "%" && left.text()) return formatted_by_percent(*left.text(), right);
  check_defined(right);
  if (left.is_number() && right.is_number()) return arithmetic(sign, left, right);
  if ((left.is_number() || left.big()) && (right.is_number() || right.big())) check_fits(false);
  if (sign == "+" && left.text() && right.text()) {
    Text text = *left.text();
    text.append(*right.text());
    return text;
  }
  if (sign == "+" && left.list() && right.list() && !left.tuple() == !right.tuple())
    return joined(left.sequence()->form, *left.list(), *right.list());
  if (sign == "*" && right.is_whole()) {
    if (left.text()) return repeated(*left.text(), right.whole());
    if (left.list()) return repeated(left.sequence()->form, *left.list(), right.whole());
  }
  if (sign == "*" && left.is_whole() && (right.text() || right.list())) return binary(sign, right, left);
  fail("{} of a {} and a {} is not possible", sign, left.type_name(), right.type_name());
}

Value negative(const Value& value) {
  check_defined(value);
  if (const BigInteger* big = value.big())
    return big->digits[0] == '-' ? whole_of_digits(std::string_view(big->digits).substr(1), false)
                                 : whole_of_digits(big->digits, true);
  check(value.is_number(), "- of a {} is not possible", value.type_name());
  if (value.real()) return -*value.real();
  check_fits(value.whole() != std::numeric_limits<int64_t>::min());
  return -value.whole();
}
Value positive(const Value& value) {
  check_defined(value);
  check(value.is_number() || value.big(), "+ of a {} is not possible", value.type_name());
  return value.truth_value() ? Value(value.whole()) : value;
}

bool holds(std::string_view sign, const Value& left, const Value& right) {
  if (sign == "==") return equal(left, right);
  if (sign == "!=") return !equal(left, right);
  if (sign == "in") return contains(right, left);
  if (sign == "not in") return !contains(right, left);
  const auto is_nan = [](const Value& v) { return v.real() && std::isnan(*v.real()); };
  const int order = compare(left, right);
  if (is_nan(left) || is_nan(right)) return false;
  if (sign == "<") return order < 0;
  if (sign == "<=") return order <= 0;
  return sign == ">" ? order > 0 : order >= 0;
}

Elements elements_of(const Value& value) {
  if (const auto sequence = value.shared_sequence()) {
    if (sequence->form != Form::kIterator) return Elements({sequence, &sequence->items});
    const size_t taken = std::exchange(sequence->taken, sequence->items.size());
    if (taken == 0) return Elements({sequence, &sequence->items});
    return Elements(std::make_shared<const List>(sequence->items.begin() + static_cast<std::ptrdiff_t>(taken),
                                                 sequence->items.end()));
  }
  List made;
  if (const Dict* dict = value.dict())
    for (const auto& [key, of_key] : *dict) made.push_back(key.value());
  else if (const Text* text = value.text()) {
    Budget::spend(static_cast<int64_t>(text->size()));
    for (size_t at = 0, end; at < text->size(); at = end) {
      end = at + 1;
      while (end < text->size() && (text->bytes()[end] & 0xC0) == 0x80) ++end;
      made.emplace_back(text->part(at, end - at));
    }
  } else if (value.loop()) {
    fail("the elements of a loop are walked by another one: that is not supported");
  } else {
    check(value.is_undefined(), "a {} has no elements (it is not iterable)", value.type_name());
  }
  return Elements(std::make_shared<const List>(std::move(made)));
}

bool contains(const Value& whole, const Value& part) {
  if (const Text* text = whole.text()) {
    check_defined(part);
    check(part.text() != nullptr, "only a text can be in a text, and a {} is given", part.type_name());
    Budget::spend_bytes(text->size());
    return text->bytes().find(part.text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = whole.dict()) return find_key(*dict, part) != nullptr;
  return std::ranges::any_of(elements_of(whole), [&](const Value& one) { return equal(one, part); });
}

int64_t length_of(const Value& value) {
  if (const Text* text = value.text()) return text->length();
  if (const Dict* dict = value.dict()) return std::ssize(*dict);
  if (value.is_undefined()) return 0;
  if (value.loop()) return loop_field(*value.loop(), "length").whole();
  const Sequence* sequence = value.sequence();
  check(sequence && sequence->form != Form::kIterator, "a {} has no length", value.type_name());
  return std::ssize(sequence->items);
}

}  // namespace tessera::jinja

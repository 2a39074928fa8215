#include "data/chat/filters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "data/chat/arguments.h"
#include "data/chat/filter_table.h"
#include "data/chat/letters.h"
#include "data/chat/operators.h"
#include "data/chat/writing.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

using TestFunction = bool (*)(const Value&, const Arguments&);
using TestTable = std::map<std::string, TestFunction, std::less<>>;

// Those that are known to jinja2, and that its test `filter` knows
constexpr std::array kUnsupported{"e",         "escape", "forceescape", "pprint", "random",
                                  "striptags", "urlize", "wordwrap",    "xmlattr"};

const FilterTable& filters() {
  static const FilterTable kFilters = [] {
    FilterTable all = list_filters();
    all.insert(text_filters().begin(), text_filters().end());
    all.insert(number_filters().begin(), number_filters().end());
    return all;
  }();
  return kFilters;
}

const Value& operand(const Arguments& a, const char* test) { return *bind(a, test, {"other"}, 1)[0]; }

template <bool kEqual>
bool is_equal(const Value& v, const Arguments& a) {
  return equal(v, operand(a, "eq")) == kEqual;
}
// kSign: the operator, as < or <=
struct Sign {
  char text[3];
};
template <Sign kSign>
bool is_ordered(const Value& v, const Arguments& a) {
  return holds(kSign.text, v, operand(a, kSign.text));
}

bool is_divisible(const Value& v, const Arguments& a) {
  return binary("%", v, operand(a, "divisibleby")).number() == 0;
}
bool is_odd(const Value& v, const Arguments&) { return equal(binary("%", v, int64_t{2}), int64_t{1}); }
bool is_even(const Value& v, const Arguments&) { return equal(binary("%", v, int64_t{2}), int64_t{0}); }

bool is_sequence(const Value& v, const Arguments&) {
  const Sequence* sequence = v.sequence();
  return v.text() || v.list() || v.dict() || v.is_undefined() || (sequence && sequence->form == Form::kRange);
}
bool is_iterable(const Value& v, const Arguments&) {
  return v.text() || v.sequence() || v.dict() || v.is_undefined() || v.loop();
}

bool is_known_filter(const Value& v, const Arguments&) {
  return v.text() && (is_filter(v.text()->bytes()) ||
                      std::ranges::find(kUnsupported, v.text()->bytes()) != kUnsupported.end());
}

const TestTable& tests() {
  static const TestTable kTests{
      {"!=", is_equal<false>},
      {"<", is_ordered<Sign{"<"}>},
      {"<=", is_ordered<Sign{"<="}>},
      {"==", is_equal<true>},
      {">", is_ordered<Sign{">"}>},
      {">=", is_ordered<Sign{">="}>},
      {"boolean", [](const Value& v, const Arguments&) { return v.truth_value() != nullptr; }},
      {"callable",
       [](const Value& v, const Arguments&) { return v.callable() || v.is_undefined() || v.loop(); }},
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"divisibleby", is_divisible},
      {"eq", is_equal<true>},
      {"equalto", is_equal<true>},
      {"even", is_even},
      {"false", [](const Value& v, const Arguments&) { return v.truth_value() && !*v.truth_value(); }},
      {"filter", is_known_filter},
      {"float", [](const Value& v, const Arguments&) { return v.real() != nullptr; }},
      {"ge", is_ordered<Sign{">="}>},
      {"greaterthan", is_ordered<Sign{">"}>},
      {"gt", is_ordered<Sign{">"}>},
      {"in", [](const Value& v, const Arguments& a) { return contains(operand(a, "in"), v); }},
      {"integer", [](const Value& v, const Arguments&) { return v.integer() || v.big(); }},
      {"iterable", is_iterable},
      {"le", is_ordered<Sign{"<="}>},
      {"lessthan", is_ordered<Sign{"<"}>},
      {"lower", [](const Value& v, const Arguments&) { return all_lower(to_text(v)); }},
      {"lt", is_ordered<Sign{"<"}>},
      {"mapping", [](const Value& v, const Arguments&) { return v.dict() != nullptr; }},
      {"ne", is_equal<false>},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number() || v.big(); }},
      {"odd", is_odd},
      {"sameas", [](const Value& v, const Arguments& a) { return v.is_same(operand(a, "sameas")); }},
      {"sequence", is_sequence},
      {"string", [](const Value& v, const Arguments&) { return v.text() != nullptr; }},
      {"test", [](const Value& v, const Arguments&) { return v.text() && is_test(v.text()->bytes()); }},
      {"true", [](const Value& v, const Arguments&) { return v.truth_value() && *v.truth_value(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"upper", [](const Value& v, const Arguments&) { return all_upper(to_text(v)); }},
  };
  return kTests;
}

template <class Table>
std::string names_in(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& [name, function] : table) names.push_back(name);
  return join_words(names, " and ");
}

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(name); }
bool is_test(std::string_view name) { return tests().contains(name); }
void check_filter(std::string_view name) {
  check(is_filter(name), "the filter {} is not supported; known are {}", name, names_in(filters()));
}
void check_test(std::string_view name) {
  check(is_test(name), "the test {} is not supported; known are {}", name, names_in(tests()));
}

Value apply_filter(std::string_view name, const Value& of, const Arguments& arguments) {
  return filters().find(name)->second(of, arguments);
}
bool apply_test(std::string_view name, const Value& of, const Arguments& arguments) {
  return tests().find(name)->second(of, arguments);
}

}  // namespace tessera::jinja

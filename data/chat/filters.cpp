#include "data/chat/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "data/chat/arguments.h"
#include "data/chat/text_methods.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

using FilterFunction = Value (*)(const Value&, const Arguments&);
using TestFunction = bool (*)(const Value&, const Arguments&);

// "a.b": the field b of the field a; a number is an index
Value at_path(const Value& of, const Value& path) {
  if (!path.text()) return item_of(of, path);
  Value value = of;
  std::string_view rest = path.text()->bytes();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    int64_t index = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = read.ec == std::errc() && read.ptr == name.data() + name.size();
    if (value.is_undefined()) return value;
    value = item_of(value, is_index ? Value(index) : Value(Text(std::string(name))));
    if (dot == rest.npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

// The key by which texts and other values are put in order, without regard to case unless asked
Value order_key(const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.text()) return value;
  std::string bytes = value.text()->bytes();
  for (char& c : bytes)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return Text(std::move(bytes));
}

struct Order {
  const Value* attribute = nullptr;
  bool case_sensitive = false;
  bool operator()(const Value& a, const Value& b) const { return compare(key(a), key(b)) < 0; }
  Value key(const Value& value) const {
    return order_key(attribute && !attribute->is_none() ? at_path(value, *attribute) : value, case_sensitive);
  }
};

List sorted(List list, const Order& order, bool descending) {
  if (descending)
    std::ranges::stable_sort(list, [&](const Value& a, const Value& b) { return order(b, a); });
  else
    std::ranges::stable_sort(list, order);
  return list;
}

Value sort_filter(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "sort", {"reverse", "case_sensitive", "attribute"});
  return sorted(elements_of(of), {.attribute = bound[2], .case_sensitive = truth_of(bound[1])},
                truth_of(bound[0]));
}

Value dictsort(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "dictsort", {"case_sensitive", "by", "reverse"});
  check(of.dict() != nullptr, "dictsort expects a dictionary, and a {} is given", of.type_name());
  const bool by_value = bound[1] && text_of(bound[1], "dictsort").bytes() == "value";
  List pairs;
  for (const auto& [key, value] : *of.dict()) pairs.emplace_back(List{key, value});
  const Value index(int64_t{by_value ? 1 : 0});
  return sorted(std::move(pairs), {.attribute = &index, .case_sensitive = truth_of(bound[0])},
                truth_of(bound[2]));
}

Value unique(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "unique", {"case_sensitive", "attribute"});
  const Order order{.attribute = bound[1], .case_sensitive = truth_of(bound[0])};
  List kept, keys;
  for (const Value& one : elements_of(of)) {
    Value key = order.key(one);
    if (std::ranges::any_of(keys, [&](const Value& other) { return equal(key, other); })) continue;
    kept.push_back(one);
    keys.push_back(std::move(key));
  }
  return kept;
}

Value extreme(const Value& of, const Arguments& a, const char* callee, bool largest) {
  const auto bound = bind(a, callee, {"case_sensitive", "attribute"});
  const Order order{.attribute = bound[1], .case_sensitive = truth_of(bound[0])};
  const List list = elements_of(of);
  if (list.empty()) return Undefined{std::string(callee)};
  return largest ? *std::ranges::max_element(list, order) : *std::ranges::min_element(list, order);
}

Value map_filter(const Value& of, const Arguments& a) {
  List made;
  if (a.positional.empty()) {
    const auto bound = bind(a, "map", {"attribute", "default"}, 1);
    for (const Value& one : elements_of(of)) {
      Value value = at_path(one, *bound[0]);
      made.push_back(value.is_undefined() && bound[1] ? *bound[1] : std::move(value));
    }
    return made;
  }
  const std::string& filter = text_of(&a.positional[0], "map").bytes();
  check(is_filter(filter), "map: the filter {} is not supported; known are {}", filter, names_of_filters());
  const Arguments rest{.positional = {a.positional.begin() + 1, a.positional.end()}, .named = a.named};
  for (const Value& one : elements_of(of)) made.push_back(apply_filter(filter, one, rest));
  return made;
}

// select, reject, selectattr and rejectattr: by a test with its arguments, else by being true
Value chosen(const Value& of, const Arguments& a, const char* callee, bool by_attribute, bool keep) {
  check(a.named.empty(), "{} takes no named arguments", callee);
  const size_t test_at = by_attribute ? 1 : 0;
  check(a.positional.size() >= test_at, "{} needs the name of an attribute", callee);
  const bool has_test = a.positional.size() > test_at;
  const std::string test = has_test ? text_of(&a.positional[test_at], callee).bytes() : "";
  check(!has_test || is_test(test), "{}: the test {} is not supported; known are {}", callee, test,
        names_of_tests());
  Arguments rest;
  if (has_test)
    rest.positional.assign(a.positional.begin() + static_cast<std::ptrdiff_t>(test_at) + 1,
                           a.positional.end());
  List kept;
  for (const Value& one : elements_of(of)) {
    const Value tried = by_attribute ? at_path(one, a.positional[0]) : one;
    if ((has_test ? apply_test(test, tried, rest) : tried.is_true()) == keep) kept.push_back(one);
  }
  return kept;
}

Value tojson(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = truth_of(bound[0]), .sorted = truth_of(bound[3])};
  if (bound[1] && !bound[1]->is_none()) {
    const int64_t indent = whole_of(bound[1], "tojson", 0);
    check(indent >= 0 && indent <= 64, "tojson: an indent of {} is not supported; 0 to 64 are", indent);
    style.indent = static_cast<int>(indent);
    style.comma = ",";
  }
  if (bound[2] && !bound[2]->is_none()) {
    const List* pair = bound[2]->list();
    check(pair && pair->size() == 2, "tojson expects two separators");
    style.comma = text_of(&(*pair)[0], "tojson").bytes();
    style.colon = text_of(&(*pair)[1], "tojson").bytes();
  }
  return to_json(of, style);
}

Value indent(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "indent", {"width", "first", "blank"});
  const bool first = truth_of(bound[1]), blank = truth_of(bound[2]);
  const Text width =
      bound[0] && bound[0]->text()
          ? *bound[0]->text()
          : Text(std::string(
                static_cast<size_t>(std::clamp<int64_t>(whole_of(bound[0], "indent", 4), 0, 1000)), ' '));
  Text text = to_text(of), out;
  text.append("\n", kTemplate);
  const List lines = elements_of(text_method(text, "splitlines").callable()->call({}));
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", kTemplate);
    if (i == 0 ? first : blank || !lines[i].text()->empty()) out.append(width);
    out.append(*lines[i].text());
  }
  return out;
}

Value to_whole(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "int", {"default"});
  const Value fallback = bound[0] ? *bound[0] : Value(int64_t{0});
  if (of.is_whole()) return of.whole();
  if (of.real())
    return std::isfinite(*of.real()) && std::fabs(*of.real()) < 9e18 ? Value(static_cast<int64_t>(*of.real()))
                                                                     : fallback;
  if (!of.text()) return fallback;
  const Text digits = strip(*of.text(), {});
  int64_t whole = 0;
  double real = 0;
  const char *first = digits.bytes().data(), *last = first + digits.size();
  if (auto read = std::from_chars(first, last, whole); read.ec == std::errc() && read.ptr == last)
    return whole;
  if (auto read = std::from_chars(first, last, real);
      read.ec == std::errc() && read.ptr == last && std::fabs(real) < 9e18)
    return static_cast<int64_t>(real);
  return fallback;
}

Value to_real(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "float", {"default"});
  if (of.is_number()) return of.number();
  if (of.text()) {
    const Text digits = strip(*of.text(), {});
    double real = 0;
    const char *first = digits.bytes().data(), *last = first + digits.size();
    if (auto read = std::from_chars(first, last, real); read.ec == std::errc() && read.ptr == last)
      return real;
  }
  return bound[0] ? *bound[0] : Value(0.0);
}

Value length(const Value& of, const Arguments& a) {
  bind(a, "length", {});
  if (of.text()) return of.text()->length();
  if (of.dict()) return std::ssize(*of.dict());
  check(of.list() || of.is_undefined(), "a {} has no length", of.type_name());
  return of.list() ? std::ssize(*of.list()) : int64_t{0};
}

Value sum(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "sum", {"attribute", "start"});
  int64_t whole = whole_of(bound[1], "sum", 0);
  double real = 0;
  bool is_whole = true;
  for (const Value& one : elements_of(of)) {
    const Value value = bound[0] && !bound[0]->is_none() ? at_path(one, *bound[0]) : one;
    check(value.is_number(), "sum expects numbers, and a {} is given", value.type_name());
    if (value.is_whole())
      whole += value.whole();
    else
      real += value.number(), is_whole = false;
  }
  return is_whole ? Value(whole) : Value(real + static_cast<double>(whole));
}

Value first_or_last(const Value& of, const char* callee, bool last) {
  const List list = elements_of(of);
  if (list.empty()) return Undefined{callee};
  return last ? list.back() : list.front();
}

Value items_of(const Value& of, const Arguments& a) {
  bind(a, "items", {});
  if (of.is_undefined()) return List{};
  check(of.dict() != nullptr, "items expects a dictionary, and a {} is given", of.type_name());
  List pairs;
  for (const auto& [key, value] : *of.dict()) pairs.emplace_back(List{key, value});
  return pairs;
}

Value or_default(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "default", {"default_value", "boolean"});
  const bool replaced = of.is_undefined() || (truth_of(bound[1]) && !of.is_true());
  if (!replaced) return of;
  return bound[0] ? *bound[0] : Value("");
}

Value join_filter(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "join", {"d", "attribute"});
  List list = elements_of(of);
  if (bound[1] && !bound[1]->is_none())
    for (Value& one : list) one = at_path(one, *bound[1]);
  return join(list, bound[0] ? to_text(*bound[0]) : Text());
}

Value reversed(const Value& of, const Arguments& a) {
  bind(a, "reverse", {});
  if (of.text()) return of.text()->characters(of.text()->length() - 1, -1, -1);
  List list = elements_of(of);
  std::ranges::reverse(list);
  return list;
}

Value absolute(const Value& of, const Arguments& a) {
  bind(a, "abs", {});
  check(of.is_number(), "abs expects a number, and a {} is given", of.type_name());
  return of.is_whole() ? Value(std::abs(of.whole())) : Value(std::fabs(of.number()));
}

Value trim(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "trim", {"chars"});
  const bool blanks = !bound[0] || bound[0]->is_none();
  return strip(to_text(of), {}, blanks ? nullptr : &text_of(bound[0], "trim"));
}

Value replaced(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "replace", {"old", "new", "count"}, 2);
  const bool all = !bound[2] || bound[2]->is_none();
  return replace(to_text(of), to_text(*bound[0]).bytes(), to_text(*bound[1]),
                 all ? -1 : whole_of(bound[2], "replace", -1));
}

const std::map<std::string, FilterFunction, std::less<>>& filters() {
  static const std::map<std::string, FilterFunction, std::less<>> kFilters{
      {"abs", absolute},
      {"capitalize", [](const Value& v, const Arguments&) -> Value { return capitalized(to_text(v)); }},
      {"count", length},
      {"d", or_default},
      {"default", or_default},
      {"dictsort", dictsort},
      {"first", [](const Value& v, const Arguments&) { return first_or_last(v, "first", false); }},
      {"float", to_real},
      {"indent", indent},
      {"int", to_whole},
      {"items", items_of},
      {"join", join_filter},
      {"last", [](const Value& v, const Arguments&) { return first_or_last(v, "last", true); }},
      {"length", length},
      {"list", [](const Value& v, const Arguments&) -> Value { return elements_of(v); }},
      {"lower", [](const Value& v, const Arguments&) -> Value { return in_lower_case(to_text(v)); }},
      {"map", map_filter},
      {"max", [](const Value& v, const Arguments& a) { return extreme(v, a, "max", true); }},
      {"min", [](const Value& v, const Arguments& a) { return extreme(v, a, "min", false); }},
      {"reject", [](const Value& v, const Arguments& a) { return chosen(v, a, "reject", false, false); }},
      {"rejectattr",
       [](const Value& v, const Arguments& a) { return chosen(v, a, "rejectattr", true, false); }},
      {"replace", replaced},
      {"reverse", reversed},
      {"safe", [](const Value& v, const Arguments&) { return v; }},
      {"select", [](const Value& v, const Arguments& a) { return chosen(v, a, "select", false, true); }},
      {"selectattr",
       [](const Value& v, const Arguments& a) { return chosen(v, a, "selectattr", true, true); }},
      {"sort", sort_filter},
      {"string", [](const Value& v, const Arguments&) -> Value { return to_text(v); }},
      {"sum", sum},
      {"title", [](const Value& v, const Arguments&) -> Value { return titled(to_text(v), false); }},
      {"tojson", tojson},
      {"trim", trim},
      {"unique", unique},
      {"upper", [](const Value& v, const Arguments&) -> Value { return in_upper_case(to_text(v)); }},
  };
  return kFilters;
}

const Value& operand(const Arguments& a, const char* test) { return *bind(a, test, {"other"}, 1)[0]; }
int64_t whole(const Value& value) {
  check(value.is_whole(), "a whole number is expected, and a {} is given", value.type_name());
  return value.whole();
}

const std::map<std::string, TestFunction, std::less<>>& tests() {
  static const auto is_equal = [](const Value& v, const Arguments& a) {
    return equal(v, operand(a, "equalto"));
  };
  static const auto is_unequal = [](const Value& v, const Arguments& a) {
    return !equal(v, operand(a, "ne"));
  };
  static const auto is_less = [](const Value& v, const Arguments& a) {
    return compare(v, operand(a, "lt")) < 0;
  };
  static const auto is_more = [](const Value& v, const Arguments& a) {
    return compare(v, operand(a, "gt")) > 0;
  };
  static const std::map<std::string, TestFunction, std::less<>> kTests{
      {"!=", is_unequal},
      {"<", is_less},
      {"==", is_equal},
      {">", is_more},
      {"boolean", [](const Value& v, const Arguments&) { return v.truth_value() != nullptr; }},
      {"callable", [](const Value& v, const Arguments&) { return v.callable() != nullptr; }},
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"divisibleby",
       [](const Value& v, const Arguments& a) {
         const int64_t by = whole(operand(a, "divisibleby"));
         check(by != 0, "divisibleby 0");
         return whole(v) % by == 0;
       }},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"even", [](const Value& v, const Arguments&) { return whole(v) % 2 == 0; }},
      {"false", [](const Value& v, const Arguments&) { return v.truth_value() && !*v.truth_value(); }},
      {"float", [](const Value& v, const Arguments&) { return v.real() != nullptr; }},
      {"ge", [](const Value& v, const Arguments& a) { return compare(v, operand(a, "ge")) >= 0; }},
      {"greaterthan", is_more},
      {"gt", is_more},
      {"in", [](const Value& v, const Arguments& a) { return contains(operand(a, "in"), v); }},
      {"integer", [](const Value& v, const Arguments&) { return v.integer() != nullptr; }},
      {"iterable",
       [](const Value& v, const Arguments&) { return v.text() || v.list() || v.dict() || v.is_undefined(); }},
      {"le", [](const Value& v, const Arguments& a) { return compare(v, operand(a, "le")) <= 0; }},
      {"lessthan", is_less},
      {"lt", is_less},
      {"mapping", [](const Value& v, const Arguments&) { return v.dict() != nullptr; }},
      {"ne", is_unequal},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"odd", [](const Value& v, const Arguments&) { return whole(v) % 2 != 0; }},
      {"sequence",
       [](const Value& v, const Arguments&) { return v.text() || v.list() || v.dict() || v.is_undefined(); }},
      {"string", [](const Value& v, const Arguments&) { return v.text() != nullptr; }},
      {"true", [](const Value& v, const Arguments&) { return v.truth_value() && *v.truth_value(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
  };
  return kTests;
}

template <class Table>
std::string names_in(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& [name, function] : table) names.push_back(name);
  return join_words(names, " and ");
}

Value dict_method(const Value& of, std::string_view name) {
  const auto bound_to = [&](FilterFunction call) {
    return Callable{.name = std::string(name),
                    .call = [of, call](const Arguments& a) { return call(of, a); }};
  };
  if (name == "items") return bound_to(items_of);
  if (name == "keys")
    return bound_to([](const Value& v, const Arguments&) -> Value { return elements_of(v); });
  if (name == "values")
    return bound_to([](const Value& v, const Arguments&) -> Value {
      List values;
      for (const auto& [key, value] : *v.dict()) values.push_back(value);
      return values;
    });
  if (name == "get")
    return bound_to([](const Value& v, const Arguments& a) -> Value {
      const auto bound = bind(a, "get", {"key", "default"}, 1);
      const Value* found = bound[0]->text() ? find(*v.dict(), bound[0]->text()->bytes()) : nullptr;
      return found ? *found : bound[1] ? *bound[1] : Value();
    });
  return Undefined{std::string(name)};
}

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(name); }
bool is_test(std::string_view name) { return tests().contains(name); }
std::string names_of_filters() { return names_in(filters()); }
std::string names_of_tests() { return names_in(tests()); }

Value apply_filter(std::string_view name, const Value& of, const Arguments& arguments) {
  return filters().find(name)->second(of, arguments);
}
bool apply_test(std::string_view name, const Value& of, const Arguments& arguments) {
  return tests().find(name)->second(of, arguments);
}

Value attribute_of(const Value& of, std::string_view name) {
  check(!of.is_undefined(), "{} is undefined, so it has no {}", of.is_undefined() ? of.undefined()->name : "",
        name);
  if (const Text* text = of.text()) return text_method(*text, name);
  const Dict* dict = of.fields() ? &of.fields()->fields : of.dict();
  if (!dict) return Undefined{std::string(name)};
  if (of.dict())
    if (Value method = dict_method(of, name); !method.is_undefined()) return method;
  const Value* found = find(*dict, name);
  return found ? *found : Value(Undefined{std::string(name)});
}

Value item_of(const Value& of, const Value& key) {
  if (key.text()) {
    const Value* found = of.dict() ? find(*of.dict(), key.text()->bytes()) : nullptr;
    return found ? *found : attribute_of(of, key.text()->bytes());
  }
  check(!of.is_undefined(), "{} is undefined, so it has no elements",
        of.is_undefined() ? of.undefined()->name : "");
  if (!key.is_whole() || (!of.list() && !of.text())) return Undefined{"an element"};
  const int64_t count = of.list() ? std::ssize(*of.list()) : of.text()->length();
  const int64_t at = key.whole() < 0 ? key.whole() + count : key.whole();
  if (at < 0 || at >= count) return Undefined{fmt::format("the element {} of {}", key.whole(), count)};
  return of.list() ? (*of.list())[static_cast<size_t>(at)] : Value(of.text()->characters(at, at + 1));
}

List elements_of(const Value& value) {
  if (value.list()) return *value.list();
  if (value.is_undefined()) return {};
  List made;
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, of_key] : *dict) made.emplace_back(key);
    return made;
  }
  check(value.text() != nullptr, "a {} has no elements", value.type_name());
  const int64_t count = value.text()->length();
  for (int64_t i = 0; i < count; ++i) made.emplace_back(value.text()->characters(i, i + 1));
  return made;
}

bool contains(const Value& whole, const Value& part) {
  if (whole.is_undefined()) return false;
  if (const Text* text = whole.text()) {
    check(part.text() != nullptr, "only a text can be in a text, and a {} is given", part.type_name());
    return text->bytes().find(part.text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = whole.dict()) return part.text() && find(*dict, part.text()->bytes());
  check(whole.list() != nullptr, "nothing is in a {}", whole.type_name());
  return std::ranges::any_of(*whole.list(), [&](const Value& one) { return equal(one, part); });
}

}  // namespace tessera::jinja

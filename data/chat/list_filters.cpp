#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "data/chat/arguments.h"
#include "data/chat/filter_table.h"
#include "data/chat/filters.h"
#include "data/chat/letters.h"
#include "data/chat/members.h"
#include "data/chat/operators.h"
#include "data/chat/text_parts.h"
#include "data/chat/writing.h"
#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

Value iterator(List items) { return {Form::kIterator, std::move(items)}; }

// "a.b": the field b of the field a; a number is an index. `fallback` replaces what is undefined on the way.
Value at_path(const Value& of, const Value* path, const Value* fallback = nullptr) {
  if (!is_given(path)) return of;
  const auto step = [&](const Value& from, const Value& key) {
    Value value = item_of(from, key);
    return value.is_undefined() && is_given(fallback) ? *fallback : value;
  };
  if (!path->text()) return step(of, *path);
  Value value = of;
  for (std::string_view rest = path->text()->bytes();;) {
    const size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    int64_t index = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = read.ec == std::errc() && read.ptr == name.data() + name.size() && name[0] != '-';
    value = step(value, is_index ? Value(index) : Value(Text(std::string(name))));
    if (dot == rest.npos) return value;
    rest.remove_prefix(dot + 1);
  }
}

// How elements are put in order: by an attribute, or several, without regard to case unless asked
struct Order {
  const Value* attribute = nullptr;
  bool case_sensitive = false;
  const Value* fallback = nullptr;

  Value key(const Value& value) const {
    Budget::spend(1);
    Value found = at_path(value, attribute, fallback);
    return case_sensitive || !found.text() ? found : Value(in_lower_case(*found.text()));
  }
  Value keys(const Value& value) const {  // "a,b": by a, then by b
    if (!is_given(attribute) || !attribute->text()) return key(value);
    List parts;
    for (const Value& name : split(*attribute->text(), &kComma, -1))
      parts.push_back(Order{.attribute = &name, .case_sensitive = case_sensitive}.key(value));
    return parts.size() == 1 ? parts[0] : Value(std::move(parts));
  }
  static inline const Text kComma{","};
};

struct Keyed {
  Value key, value;
};
using KeyedList = std::vector<Keyed, Counted<Keyed>>;
List sorted(KeyedList list, bool descending) {
  std::ranges::stable_sort(list, [&](const Keyed& a, const Keyed& b) {
    return descending ? compare(b.key, a.key) < 0 : compare(a.key, b.key) < 0;
  });
  List values;
  for (Keyed& one : list) values.push_back(std::move(one.value));
  return values;
}

Value sort_filter(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "sort", {"reverse", "case_sensitive", "attribute"});
  const Order order{.attribute = bound[2], .case_sensitive = truth_of(bound[1])};
  KeyedList list;
  for (const Value& one : elements_of(of)) list.push_back({order.keys(one), one});
  return sorted(std::move(list), truth_of(bound[0]));
}

Value dictsort(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "dictsort", {"case_sensitive", "by", "reverse"});
  check_defined(of);
  check(of.dict() != nullptr, "dictsort expects a dictionary, and a {} is given", of.type_name());
  const std::string by = bound[1] ? text_of(bound[1], "dictsort").bytes() : "key";
  check(by == "key" || by == "value", "dictsort: by is 'key' or 'value', not '{}'", by);
  const Order order{.case_sensitive = truth_of(bound[0])};
  KeyedList list;
  for (const auto& [key, value] : *of.dict())
    list.push_back(
        {order.key(by == "key" ? key.value() : value), Value(Form::kTuple, List{key.value(), value})});
  return sorted(std::move(list), truth_of(bound[2]));
}

Value groupby(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const Order order{.attribute = bound[0], .case_sensitive = truth_of(bound[2]), .fallback = bound[1]};
  KeyedList list;
  for (const Value& one : elements_of(of)) list.push_back({order.key(one), one});
  const List values = sorted(std::move(list), false);
  List groups;
  for (size_t first = 0, last; first < values.size(); first = last) {
    const Value key = order.key(values[first]);
    for (last = first + 1; last < values.size() && equal(order.key(values[last]), key);) ++last;
    List members(values.begin() + static_cast<std::ptrdiff_t>(first),
                 values.begin() + static_cast<std::ptrdiff_t>(last));
    groups.emplace_back(Form::kTuple, List{at_path(values[first], bound[0], bound[1]), std::move(members)},
                        std::array<int64_t, 3>{kGroup});
  }
  return groups;
}

Value unique(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "unique", {"case_sensitive", "attribute"});
  const Order order{.attribute = bound[1], .case_sensitive = truth_of(bound[0])};
  List kept, keys;
  std::unordered_set<std::string_view> texts;  // of `keys`
  for (const Value& one : elements_of(of)) {
    Value key = order.key(one);
    if (!key.is_undefined()) Key{key};  // refuses what has no hash()
    if (key.text() ? texts.contains(key.text()->bytes())
                   : std::ranges::any_of(keys, [&](const Value& other) { return equal(key, other); }))
      continue;
    kept.push_back(one);
    keys.push_back(key);
    if (key.text()) texts.insert(keys.back().text()->bytes());
  }
  return iterator(std::move(kept));
}

Value extreme(const Value& of, const Arguments& a, const char* callee, bool largest) {
  const auto bound = bind(a, callee, {"case_sensitive", "attribute"});
  const Order order{.attribute = bound[1], .case_sensitive = truth_of(bound[0])};
  const auto list = elements_of(of);
  if (list.empty()) return Undefined{fmt::format("the {} of no elements", callee)};
  size_t best = 0;
  Value best_key = order.key(list[0]);
  for (size_t i = 1; i < list.size(); ++i) {
    Value key = order.key(list[i]);
    if (largest ? compare(best_key, key) < 0 : compare(key, best_key) < 0)
      best = i, best_key = std::move(key);
  }
  return list[best];
}

Value map_filter(const Value& of, const Arguments& a) {
  List made;
  if (a.positional.empty()) {
    const auto bound = bind(a, "map", {"attribute", "default"}, 1);
    for (const Value& one : elements_of(of)) {
      Budget::spend(1);
      made.push_back(at_path(one, bound[0], bound[1]));
    }
    return iterator(std::move(made));
  }
  const std::string& filter = text_of(&a.positional[0], "map").bytes();
  check_filter(filter);
  const Arguments rest{.positional = {a.positional.begin() + 1, a.positional.end()}, .named = a.named};
  for (const Value& one : elements_of(of)) {
    Budget::spend(1);
    made.push_back(apply_filter(filter, one, rest));
  }
  return iterator(std::move(made));
}

// select, reject, selectattr and rejectattr: by a test with its arguments, else by being true
Value chosen(const Value& of, const Arguments& a, const char* callee, bool by_attribute, bool keep) {
  const size_t test_at = by_attribute ? 1 : 0;
  if (!of.is_true()) return iterator({});
  check(a.positional.size() >= test_at, "{} needs the name of an attribute", callee);
  const bool has_test = a.positional.size() > test_at;
  const std::string test = has_test ? text_of(&a.positional[test_at], callee).bytes() : "";
  if (has_test) check_test(test);
  Arguments rest{.positional = {}, .named = a.named};
  if (has_test)
    rest.positional.assign(a.positional.begin() + static_cast<std::ptrdiff_t>(test_at) + 1,
                           a.positional.end());
  List kept;
  for (const Value& one : elements_of(of)) {
    Budget::spend(1);
    const Value tried = by_attribute ? at_path(one, &a.positional[0]) : one;
    if ((has_test ? apply_test(test, tried, rest) : tried.is_true()) == keep) kept.push_back(one);
  }
  return iterator(std::move(kept));
}

Value batch(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "batch", {"linecount", "fill_with"}, 1);
  const int64_t count = whole_of(bound[0], "batch", 0);
  List rows, row;
  for (const Value& one : elements_of(of)) {
    Budget::spend(1);
    if (std::ssize(row) == count) rows.emplace_back(std::exchange(row, {}));
    row.push_back(one);
  }
  while (!row.empty() && is_given(bound[1]) && std::ssize(row) < count) row.push_back(*bound[1]);
  if (!row.empty()) rows.emplace_back(std::move(row));
  return iterator(std::move(rows));
}

Value slice_filter(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "slice", {"slices", "fill_with"}, 1);
  const auto list = elements_of(of);
  const int64_t slices = whole_of(bound[0], "slice", 0), length = static_cast<int64_t>(list.size());
  check(slices != 0, "slice: division by zero");
  List made;
  int64_t first = 0;
  for (int64_t i = 0; i < slices; ++i) {
    Budget::spend(1);
    const int64_t last = first + length / slices + (i < length % slices ? 1 : 0);
    Budget::spend_elements(static_cast<size_t>(std::max<int64_t>(last - first, 0)));
    List part(list.begin() + first, list.begin() + last);
    if (is_given(bound[1]) && i >= length % slices) part.push_back(*bound[1]);
    made.emplace_back(std::move(part));
    first = last;
  }
  return iterator(std::move(made));
}

Value sum(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "sum", {"attribute", "start"});
  Value made = bound[1] ? *bound[1] : Value(int64_t{0});
  check(!made.text(), "sum: a text is not summed; join texts");
  for (const Value& one : elements_of(of)) {
    Budget::spend(1);
    made = binary("+", made, at_path(one, bound[0]));
  }
  return made;
}

Value first(const Value& of, const Arguments& a) {
  bind(a, "first", {});
  if (of.text())
    return of.text()->empty() ? Value(Undefined{"the first of no elements"}) : of.text()->characters(0, 1);
  Sequence* sequence = of.sequence();
  if (sequence && sequence->form == Form::kIterator && sequence->taken < sequence->items.size())
    return sequence->items[sequence->taken++];
  const auto list = elements_of(of);
  return list.empty() ? Value(Undefined{"the first of no elements"}) : list[0];
}
Value last(const Value& of, const Arguments& a) {
  bind(a, "last", {});
  const Value nothing = Undefined{"the last of no elements"};
  if (const Text* text = of.text())
    return text->empty() ? nothing : text->characters(text->length() - 1, text->length());
  check(!of.sequence() || of.sequence()->form != Form::kIterator, "last: a generator has no last element");
  const auto list = elements_of(of);
  return list.empty() ? nothing : list[list.size() - 1];
}

Value reversed(const Value& of, const Arguments& a) {
  bind(a, "reverse", {});
  if (of.text()) return of.text()->characters(of.text()->length() - 1, -1, -1);
  const auto list = elements_of(of);
  Budget::spend_elements(list.size());
  List made = list.list();
  std::ranges::reverse(made);
  const bool was_iterator = of.sequence() && of.sequence()->form == Form::kIterator;
  return was_iterator ? Value(std::move(made)) : iterator(std::move(made));
}

Value join_filter(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "join", {"d", "attribute"});
  const Text between = bound[0] ? to_text(*bound[0]) : Text();
  Text out;
  const auto list = elements_of(of);
  for (const Value& one : list) {
    Budget::spend(1);
    if (&one != &list[0]) out.append(between);
    const Value value = at_path(one, bound[1]);
    if (value.text())
      out.append(*value.text());
    else
      out.append(to_text(value));
  }
  return out;
}

Value items_of(const Value& of, const Arguments& a) {
  bind(a, "items", {});
  if (of.is_undefined()) return iterator({});
  check(of.dict() != nullptr, "items expects a dictionary, and a {} is given", of.type_name());
  List pairs;
  for (const auto& [key, value] : *of.dict()) pairs.emplace_back(Form::kTuple, List{key.value(), value});
  return iterator(std::move(pairs));
}

Value as_list(const Value& of, const Arguments& a) {
  bind(a, "list", {});
  const auto list = elements_of(of);
  Budget::spend_elements(list.size());
  return list.list();
}
Value length(const Value& of, const Arguments& a) {
  bind(a, "length", {});
  return length_of(of);
}
Value attr(const Value& of, const Arguments& a) {
  const std::string& name = text_of(bind(a, "attr", {"name"}, 1)[0], "attr").bytes();
  if (of.dict() && find(*of.dict(), name)) {  // what a dictionary holds is no attribute of it
    const Value method = attribute_of(Dict{}, name);
    return method.is_undefined() ? method : attribute_of(of, name);
  }
  return attribute_of(of, name);
}

}  // namespace

const FilterTable& list_filters() {
  static const FilterTable kFilters{
      {"attr", attr},
      {"batch", batch},
      {"count", length},
      {"dictsort", dictsort},
      {"first", first},
      {"groupby", groupby},
      {"items", items_of},
      {"join", join_filter},
      {"last", last},
      {"length", length},
      {"list", as_list},
      {"map", map_filter},
      {"max", [](const Value& v, const Arguments& a) { return extreme(v, a, "max", true); }},
      {"min", [](const Value& v, const Arguments& a) { return extreme(v, a, "min", false); }},
      {"reject", [](const Value& v, const Arguments& a) { return chosen(v, a, "reject", false, false); }},
      {"rejectattr",
       [](const Value& v, const Arguments& a) { return chosen(v, a, "rejectattr", true, false); }},
      {"reverse", reversed},
      {"select", [](const Value& v, const Arguments& a) { return chosen(v, a, "select", false, true); }},
      {"selectattr",
       [](const Value& v, const Arguments& a) { return chosen(v, a, "selectattr", true, true); }},
      {"slice", slice_filter},
      {"sort", sort_filter},
      {"sum", sum},
      {"unique", unique},
  };
  return kFilters;
}

}  // namespace tessera::jinja

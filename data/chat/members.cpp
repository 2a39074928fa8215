#include "data/chat/members.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "data/chat/arguments.h"
#include "data/chat/formatting.h"
#include "data/chat/loop.h"
#include "data/chat/operators.h"
#include "data/chat/text_methods.h"
#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

using Method = Value (*)(const Value&, const Arguments&);
using Methods = std::map<std::string, Method, std::less<>>;

// A view of a dictionary: what keys(), values() and items() return
Value view(const Value& of, const Arguments& a, const char* callee, Form form) {
  bind(a, callee, {});
  List items;
  for (const auto& [key, value] : *of.dict())
    items.push_back(form == Form::kKeys     ? key.value()
                    : form == Form::kValues ? value
                                            : Value(Form::kTuple, List{key.value(), value}));
  return {form, std::move(items)};
}

const Methods& dict_methods() {
  static const Methods kMethods{
      {"copy", [](const Value& v, const Arguments&) { return v; }},
      {"get",
       [](const Value& v, const Arguments& a) {
         const auto bound = bind(a, "get", {"key", "default"}, 1);
         const Value* found = find_key(*v.dict(), *bound[0]);
         return found ? *found : bound[1] ? *bound[1] : Value();
       }},
      {"items", [](const Value& v, const Arguments& a) { return view(v, a, "items", Form::kItems); }},
      {"keys", [](const Value& v, const Arguments& a) { return view(v, a, "keys", Form::kKeys); }},
      {"values", [](const Value& v, const Arguments& a) { return view(v, a, "values", Form::kValues); }},
  };
  return kMethods;
}

Value count_in(const Value& of, const Arguments& a) {
  const Value& wanted = *bind(a, "count", {"value"}, 1)[0];
  return static_cast<int64_t>(
      std::ranges::count_if(of.sequence()->items, [&](const Value& one) { return equal(one, wanted); }));
}
Value index_in(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "index", {"value", "start", "stop"}, 1);
  const List& items = of.sequence()->items;
  const Bounded range = bounded(bound[1], bound[2], std::ssize(items));
  for (int64_t i = range.first; i < range.last; ++i)
    if (equal(items[static_cast<size_t>(i)], *bound[0])) return i;
  fail("index: the value is not in the {}", of.type_name());
}
const Methods& sequence_methods() {
  static const Methods kMethods{
      {"copy", [](const Value& v, const Arguments&) { return v; }}, {"count", count_in}, {"index", index_in}};
  return kMethods;
}

// Python's methods that exist and are not supported, or that the sandbox of transformers refuses
constexpr std::array kOfDict{"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
constexpr std::array kOfList{"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
constexpr std::array kOfNumber{"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
                               "from_bytes",       "fromhex",   "hex",        "imag",      "is_integer",
                               "numerator",        "real",      "to_bytes"};
constexpr std::array kOfRange{"start", "stop", "step"};
constexpr std::array kOfView{"mapping", "isdisjoint"};
constexpr std::array kOfIterator{"close", "send", "throw"};

void refuse_where_known(std::span<const char* const> names, const Value& of, std::string_view name) {
  check(std::ranges::find(names, name) == names.end(), "the method {} of a {} is not supported", name,
        of.type_name());
}
void refuse_others(const Value& of, std::string_view name) {
  check(!name.starts_with("__") || of.fields() || of.dict(), "the attribute {} of a {} is not supported",
        name, of.type_name());
  if (of.text()) return refuse_where_known(unsupported_text_methods(), of, name);
  if (of.is_number() || of.big()) return refuse_where_known(kOfNumber, of, name);
  if (of.dict()) return refuse_where_known(kOfDict, of, name);
  if (const Sequence* sequence = of.sequence()) switch (sequence->form) {
      case Form::kList:
        return refuse_where_known(kOfList, of, name);
      case Form::kTuple:
        return;
      case Form::kRange:
        return refuse_where_known(kOfRange, of, name);
      case Form::kIterator:
        return refuse_where_known(kOfIterator, of, name);
      default:
        return refuse_where_known(kOfView, of, name);
    }
}

Value bound_method(const Methods& methods, const Value& of, std::string_view name) {
  const auto found = methods.find(name);
  if (found == methods.end()) return Undefined{std::string(name)};
  return Callable{.name = found->first,
                  .call = [of, method = found->second](const Arguments& a) { return method(of, a); },
                  .depth = of.depth()};
}

Value part_of(const Value& of, const Value& key, bool is_field) {
  return is_field ? attribute_of(of, key.text()->bytes()) : item_of(of, key);
}
const Methods& format_methods() {
  static const Methods kMethods{
      {"format",
       [](const Value& v, const Arguments& a) -> Value { return formatted(*v.text(), a, part_of); }},
      {"format_map",
       [](const Value& v, const Arguments& a) -> Value {
         const Value& values = *bind(a, "format_map", {"mapping"}, 1)[0];
         check(values.dict() != nullptr, "format_map expects a dictionary, and a {} is given",
               values.type_name());
         Arguments named;
         for (const auto& [key, value] : *values.dict()) named.named.emplace_back(key.bytes(), value);
         return formatted(*v.text(), named, part_of);
       }},
  };
  return kMethods;
}

Value method_of(const Value& of, std::string_view name) {
  if (of.text() && name.starts_with("format")) return bound_method(format_methods(), of, name);
  if (of.text()) return text_method(of, name);
  if (of.dict()) return bound_method(dict_methods(), of, name);
  const Sequence* sequence = of.sequence();
  if (sequence && (of.list() || sequence->form == Form::kRange))
    return bound_method(sequence_methods(), of, name);
  return Undefined{std::string(name)};
}

const Value* field_of(const Value& of, std::string_view name) {
  if (of.fields()) return find(of.fields()->fields, name);
  if (of.dict()) return find(*of.dict(), name);
  return of.callable() ? find(of.callable()->fields, name) : nullptr;
}

Value named_of_group(const Value& of, std::string_view name) {
  const List* tuple = of.tuple();
  const bool is_group = tuple && of.sequence()->bounds[0] == kGroup;
  if (is_group && (name == "grouper" || name == "list")) return (*tuple)[name == "list" ? 1 : 0];
  return Undefined{std::string(name)};
}

}  // namespace

Value attribute_of(const Value& of, std::string_view name) {
  check(!of.is_undefined(), "{} is undefined, so it has no {}", of.is_undefined() ? of.undefined()->name : "",
        name);
  if (of.loop()) return loop_field(*of.loop(), name);
  if (Value method = method_of(of, name); !method.is_undefined()) return method;
  if (const Value* found = field_of(of, name)) return *found;
  if (Value field = named_of_group(of, name); !field.is_undefined()) return field;
  refuse_others(of, name);
  return Undefined{std::string(name)};
}

Value item_of(const Value& of, const Value& key) {
  check(!of.is_undefined(), "{} is undefined, so it has no elements",
        of.is_undefined() ? of.undefined()->name : "");
  if (of.dict()) {
    const bool has_hash = !key.is_undefined() && (!key.sequence() || key.tuple()) && !key.dict();
    if (const Value* found = has_hash ? find_key(*of.dict(), key) : nullptr) return *found;
  }
  if (key.text()) return attribute_of(of, key.text()->bytes());
  const Sequence* sequence = of.sequence();
  const bool has_items = of.text() || of.list() || (sequence && sequence->form == Form::kRange);
  if (!key.is_whole() || !has_items) return Undefined{"an element"};
  const int64_t count = length_of(of);
  const int64_t at = key.whole() < 0 ? key.whole() + count : key.whole();
  if (at < 0 || at >= count) return Undefined{fmt::format("the element {} of {}", key.whole(), count)};
  return sequence ? sequence->items[static_cast<size_t>(at)] : Value(of.text()->characters(at, at + 1));
}

Value slice_of(const Value& of, const Bounds& bounds) {
  check_defined(of);
  const Sequence* sequence = of.sequence();
  check(of.text() || of.list() || (sequence && sequence->form == Form::kRange), "a {} has no slices",
        of.type_name());
  const int64_t count = length_of(of);
  const auto whole = [&](const Value& value, int64_t fallback) {
    return value.is_none() ? fallback : whole_of(&value, "a slice", 0);
  };
  // No step is larger than the whole: as far as it matters.
  const int64_t step = std::clamp<int64_t>(whole(bounds.step, 1), -count - 1, count + 1);
  check(whole(bounds.step, 1) != 0, "a slice's step is 0");
  // As Python: -1 is the last one, and what lies beyond the ends is cut.
  const auto place = [&](const Value& value, int64_t fallback) {
    if (value.is_none()) return fallback;
    const int64_t at = std::max(whole(value, 0), -count - 1);
    const int64_t counted = at < 0 ? at + count : at;
    return step > 0 ? std::clamp<int64_t>(counted, 0, count) : std::clamp<int64_t>(counted, -1, count - 1);
  };
  const int64_t begin = place(bounds.first, step > 0 ? 0 : count - 1),
                end = place(bounds.last, step > 0 ? count : -1);
  if (of.text()) return of.text()->characters(begin, end, step);
  List list;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step)
    list.push_back(sequence->items[static_cast<size_t>(i)]);
  Budget::spend_elements(list.size());
  const auto [first, last, by] = sequence->bounds;
  if (sequence->form == Form::kRange)
    return {
        Form::kRange, std::move(list), {first + begin * by, first + end * by, by * whole(bounds.step, 1)}};
  return {sequence->form, std::move(list)};
}

}  // namespace tessera::jinja

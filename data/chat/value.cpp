#include "data/chat/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

constexpr int kMostNested = 200;

int deepest(const List& items) {
  int depth = 0;
  for (const Value& one : items) depth = std::max(depth, one.depth());
  return depth;
}
int deepest(const Dict& fields) {
  int depth = 0;
  for (const auto& [key, one] : fields) depth = std::max(depth, one.depth());
  return depth;
}
int one_deeper(int depth) {
  check(depth < kMostNested,
        "lists and dictionaries are nested more than {} deep, which is the limit of a template", kMostNested);
  return depth + 1;
}

bool equal_items(const List& a, const List& b) {
  return a.size() == b.size() &&
         std::ranges::equal(a, b, [](const Value& x, const Value& y) { return equal(x, y); });
}
bool holds_all(const List& whole, const List& parts) {
  return std::ranges::all_of(parts, [&](const Value& part) {
    return std::ranges::any_of(whole, [&](const Value& one) { return equal(one, part); });
  });
}

bool equal_sequences(const Sequence& a, const Sequence& b) {
  if (&a == &b) return true;
  const auto is_set = [](Form form) { return form == Form::kKeys || form == Form::kItems; };
  if (is_set(a.form) && is_set(b.form))
    return a.items.size() == b.items.size() && holds_all(a.items, b.items);
  const bool by_items = a.form == Form::kList || a.form == Form::kTuple || a.form == Form::kRange;
  return a.form == b.form && by_items && equal_items(a.items, b.items);
}

// As Python's, which puts an integer before a float exactly
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return a.whole() < b.whole() ? -1 : b.whole() < a.whole();
  const auto x = static_cast<long double>(a.is_whole() ? static_cast<long double>(a.whole()) : a.number());
  const auto y = static_cast<long double>(b.is_whole() ? static_cast<long double>(b.whole()) : b.number());
  return x < y ? -1 : y < x;
}
bool is_nan(const Value& value) { return value.real() && std::isnan(*value.real()); }

int compare_big(const Value& a, const Value& b) {
  const auto is_negative = [](const Value& v) { return v.big()->digits[0] == '-'; };
  if (a.big() && b.big()) {
    if (is_negative(a) != is_negative(b)) return is_negative(a) ? -1 : 1;
    const std::string &x = a.big()->digits, &y = b.big()->digits;
    const int order = x.size() != y.size() ? (x.size() < y.size() ? -1 : 1) : x.compare(y);
    return (order < 0 ? -1 : order > 0) * (is_negative(a) ? -1 : 1);
  }
  const auto size = [](const Value& v) {
    return v.big() ? std::strtold(v.big()->digits.c_str(), nullptr) : static_cast<long double>(v.number());
  };
  return size(a) < size(b) ? -1 : size(b) < size(a);
}

}  // namespace

Key::Key(const Value& value)
    : text_(value.text() ? value.shared_text() : std::make_shared<const Text>()),
      other_(value.text() ? nullptr : std::allocate_shared<const Value>(Counted<Value>(), value)) {
  check_defined(value);
  const List* parts = value.tuple();
  const bool has_hash = value.text() || value.is_number() || value.big() || value.is_none() || parts;
  check(has_hash, "a {} is no key of a dictionary (unhashable)", value.type_name());
  if (parts)
    for (const Value& part : *parts) Key{part};
}
Value Key::value() const { return other_ ? *other_ : Value(text_); }

bool equal(const Key& a, const Key& b) {
  if (!a.other_ || !b.other_) return !a.other_ && !b.other_ && a.bytes() == b.bytes();
  return equal(*a.other_, *b.other_);
}

Value::Value(Form form, List items, std::array<int64_t, 3> bounds) {
  const int depth = one_deeper(deepest(items));
  kind_ = share<Sequence>({.form = form, .items = std::move(items), .bounds = bounds, .depth = depth});
}
Value::Value(Dict dict) {
  const int depth = one_deeper(deepest(dict));
  kind_ = share<const Mapping>({.fields = std::move(dict), .depth = depth});
}
Value::Value(Callable callable) {
  callable.depth = one_deeper(callable.depth);
  kind_ = share<const Callable>(std::move(callable));
}

int Value::depth() const {
  if (const Sequence* held = sequence()) return held->depth;
  if (const auto* held = of<const Mapping>()) return held->depth;
  return callable() ? callable()->depth : 0;
}

const List* Value::list() const {
  const Sequence* held = sequence();
  return held && (held->form == Form::kList || held->form == Form::kTuple) ? &held->items : nullptr;
}
const List* Value::tuple() const {
  const Sequence* held = sequence();
  return held && held->form == Form::kTuple ? &held->items : nullptr;
}

bool Value::is_true() const {
  if (const bool* truth = truth_value()) return *truth;
  if (is_number()) return number() != 0;
  if (const Text* held = text()) return !held->empty();
  if (const Sequence* held = sequence()) return held->form == Form::kIterator || !held->items.empty();
  if (const Dict* held = dict()) return !held->empty();
  return !is_none() && !is_undefined();
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"undefined", "NoneType", "bool", "int",       "float", "int",
                                           "str",       "",         "dict", "Namespace", "loop",  "function"};
  static constexpr const char* kForms[] = {"list",        "tuple",      "range",    "dict_keys",
                                           "dict_values", "dict_items", "generator"};
  return sequence() ? kForms[static_cast<size_t>(sequence()->form)] : kNames[kind_.index()];
}

bool Value::is_same(const Value& other) const {
  if (kind_.index() != other.kind_.index()) return false;
  return std::visit(
      [&](const auto& held) -> bool {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, None>)
          return true;
        else
          return held == std::get<Held>(other.kind_);
      },
      kind_);
}

const Value* find(const Dict& dict, std::string_view key) {
  Budget::spend(static_cast<int64_t>(dict.size() / 16));
  for (const auto& [name, value] : dict)
    if (name.bytes() == key && name.text()) return &value;
  return nullptr;
}
const Value* find_key(const Dict& dict, const Value& key) {
  if (key.text()) return find(dict, std::string_view(key.text()->bytes()));
  const Key wanted(key);
  for (const auto& [name, value] : dict)
    if (equal(name, wanted)) return &value;
  return nullptr;
}
void put(Dict& dict, const Value& key, Value value) {
  const Value* known = find_key(dict, key);
  if (known == nullptr) {
    dict.emplace_back(Key(key), std::move(value));
    return;
  }
  const auto place = std::ranges::find_if(dict, [&](const auto& field) { return &field.second == known; });
  place->second = std::move(value);
}

bool equal(const Value& a, const Value& b) {
  Budget::spend(1);
  if (a.is_number() && b.is_number()) return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
  if (a.big() && b.big()) return a.big()->digits == b.big()->digits;
  if (a.text() && b.text()) {
    const bool same = a.text()->size() == b.text()->size();
    if (same) Budget::spend_bytes(a.text()->size());
    return same && a.text()->bytes() == b.text()->bytes();
  }
  if (a.sequence() && b.sequence()) return equal_sequences(*a.sequence(), *b.sequence());
  if (a.dict() && b.dict())
    return a.dict()->size() == b.dict()->size() && std::ranges::all_of(*a.dict(), [&](const auto& field) {
             const Value* other = find_key(*b.dict(), field.first.value());
             return other && equal(field.second, *other);
           });
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  return a.is_same(b);
}

int compare(const Value& a, const Value& b) {
  Budget::spend(1);
  check_defined(a);
  check_defined(b);
  if ((a.big() || b.big()) && (a.big() || a.is_number()) && (b.big() || b.is_number()))
    return compare_big(a, b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.text() && b.text()) {  // the order of UTF-8 is that of the code points
    Budget::spend_bytes(std::min(a.text()->size(), b.text()->size()));
    const int order = a.text()->bytes().compare(b.text()->bytes());
    return order < 0 ? -1 : order > 0;
  }
  if (a.list() && b.list() && !a.tuple() == !b.tuple()) {
    const List &x = *a.list(), &y = *b.list();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(x[i], y[i])) return compare(x[i], y[i]);
    return x.size() < y.size() ? -1 : y.size() < x.size();
  }
  fail("a {} and a {} have no order", a.type_name(), b.type_name());
}

void check_defined(const Value& value) {
  check(!value.is_undefined(), "{} is undefined", value.is_undefined() ? value.undefined()->name : "");
}

int64_t size_of(const Value& value) {
  constexpr int64_t kOfValue = 16;
  int64_t size = kOfValue;
  if (const Text* text = value.text()) size += static_cast<int64_t>(text->size());
  if (const Sequence* sequence = value.sequence())
    for (const Value& one : sequence->items) size += size_of(one);
  if (const Dict* dict = value.dict())
    for (const auto& [key, one] : *dict) size += static_cast<int64_t>(key.bytes().size()) + size_of(one);
  return size;
}

}  // namespace tessera::jinja

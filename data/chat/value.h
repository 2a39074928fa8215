// The values of a chat template in Jinja: what Python has as None, numbers, texts, lists, dictionaries.
// They are shared, not copied, and, but for what namespace() and loops keep, do not change.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/chat/budget.h"
#include "data/chat/text.h"

namespace tessera::jinja {

class Value;
using List = std::vector<Value, Counted<Value>>;

// A key of a dictionary: nearly always a text, else a number, a truth, None or a tuple
class Key {
 public:
  Key(Text text) : text_(std::allocate_shared<const Text>(Counted<Text>(), std::move(text))) {}
  Key(const char* text) : Key(Text(text)) {}
  explicit Key(const Value& value);  // Error: Python's hash() takes no such value

  const Text* text() const { return other_ ? nullptr : text_.get(); }
  const std::string& bytes() const { return text_->bytes(); }  // empty where it is no text
  Value value() const;

 private:
  friend bool equal(const Key& a, const Key& b);
  std::shared_ptr<const Text> text_;
  std::shared_ptr<const Value> other_;
};
using Dict = std::vector<std::pair<Key, Value>, Counted<std::pair<Key, Value>>>;  // in the order of insertion

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};
struct Callable;  // below

// What a sequence is to Python
enum class Form : uint8_t {
  kList,
  kTuple,
  kRange,
  kKeys,  // of a dictionary, as are the next two
  kValues,
  kItems,
  kIterator  // each of its elements is taken once
};
struct Sequence {
  Form form;
  List items;
  std::array<int64_t, 3> bounds{};  // of a range
  int depth = 0;                    // of lists and dictionaries within one another
  size_t taken = 0;                 // by those who walked the iterator
};
inline constexpr int64_t kGroup =
    1;  // the first bound of a tuple that groupby makes: it has names for its parts
struct Mapping {
  Dict fields;
  int depth;
};

// An integer beyond 64 bits: it can be compared and written, and has no arithmetic.
struct BigInteger {
  std::string digits;  // with the sign
};
struct Undefined {
  std::string name;  // of what is not defined, for messages
};
struct None {};
// The only value that a template may change: namespace().
struct Namespace {
  Dict fields;
};
struct Loop;  // what {% for %} knows as `loop`

class Value {
 public:
  template <class T>
  using Shared = std::shared_ptr<T>;
  using Kind = std::variant<Shared<const Undefined>, None, bool, int64_t, double, Shared<const BigInteger>,
                            Shared<const Text>, Shared<Sequence>, Shared<const Mapping>, Shared<Namespace>,
                            Shared<Loop>, Shared<const Callable>>;

  Value() : kind_(None{}) {}
  Value(Undefined undefined) : kind_(share<const Undefined>(std::move(undefined))) {}
  Value(bool truth) : kind_(truth) {}
  Value(int64_t number) : kind_(number) {}
  Value(double number) : kind_(number) {}
  Value(BigInteger number) : kind_(share<const BigInteger>(std::move(number))) {}
  Value(Text text) : kind_(share<const Text>(std::move(text))) {}
  Value(std::shared_ptr<const Text> text) : kind_(std::move(text)) {}
  Value(const char* text) : Value(Text(text)) {}
  // Error: lists and dictionaries are nested too deep
  Value(List list) : Value(Form::kList, std::move(list)) {}
  Value(Form form, List items, std::array<int64_t, 3> bounds = {});
  Value(Dict dict);
  Value(std::shared_ptr<Namespace> fields) : kind_(std::move(fields)) {}
  Value(std::shared_ptr<Loop> loop) : kind_(std::move(loop)) {}
  Value(Callable callable);

  bool is_undefined() const { return undefined() != nullptr; }
  bool is_none() const { return std::holds_alternative<None>(kind_); }
  const bool* truth_value() const { return std::get_if<bool>(&kind_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&kind_); }
  const double* real() const { return std::get_if<double>(&kind_); }
  const BigInteger* big() const { return of<const BigInteger>(); }
  const Text* text() const { return of<const Text>(); }
  const List* list() const;   // of a list or a tuple
  const List* tuple() const;  // only of a tuple
  Sequence* sequence() const { return of<Sequence>(); }
  const Dict* dict() const { return of<const Mapping>() ? &of<const Mapping>()->fields : nullptr; }
  Namespace* fields() const { return of<Namespace>(); }
  const std::shared_ptr<Loop>* loop() const { return std::get_if<Shared<Loop>>(&kind_); }
  const Callable* callable() const { return of<const Callable>(); }
  const Undefined* undefined() const { return of<const Undefined>(); }

  bool is_number() const { return is_whole() || real(); }
  bool is_whole() const { return integer() || truth_value(); }  // as in Python, True is 1
  int64_t whole() const { return integer() ? *integer() : static_cast<int64_t>(*truth_value()); }
  double number() const { return real() ? *real() : static_cast<double>(whole()); }

  bool is_true() const;                    // as Python's bool()
  const char* type_name() const;           // Python's: "str"
  bool is_same(const Value& other) const;  // Python's `is`
  int depth() const;                       // of lists and dictionaries within one another
  Shared<Sequence> shared_sequence() const { return shared<Sequence>(); }
  Shared<const Text> shared_text() const { return shared<const Text>(); }

 private:
  template <class T>
  static Shared<T> share(T made) {
    return std::allocate_shared<T>(Counted<std::remove_const_t<T>>(), std::move(made));
  }
  template <class T>
  Shared<T> shared() const {
    const auto* held = std::get_if<Shared<T>>(&kind_);
    return held ? *held : nullptr;
  }
  template <class T>
  T* of() const {
    const auto* held = std::get_if<Shared<T>>(&kind_);
    return held ? held->get() : nullptr;
  }
  Kind kind_;
};

struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
  Dict fields = {};  // attributes of a macro
  int depth = 0;     // of the value that it is a method of
};

const Value* find(const Dict& dict, std::string_view key);
const Value* find_key(const Dict& dict, const Value& key);  // Error: what has no hash()
void put(Dict& dict, const Value& key, Value value);        // in the place of an equal key, else at the end

bool equal(const Value& a, const Value& b);  // Python's ==
bool equal(const Key& a, const Key& b);
// -1, 0 or 1. Error: the values have no order
int compare(const Value& a, const Value& b);

// Error, which names it: the value is undefined
void check_defined(const Value& value);

// All texts of `json` get `origin`. Bytes stand for the digits of an integer, as parse_json_exactly() keeps
// them.
Value value_of(const nlohmann::ordered_json& json, Origin origin);
// JSON in which integers of any size keep their digits. Error: `text` is no JSON
nlohmann::ordered_json parse_json_exactly(std::string_view text);

// Bytes and values, weighed for the budget of a rendering
int64_t size_of(const Value& value);

}  // namespace tessera::jinja

// The values of a chat template in Jinja: texts, numbers, lists, dictionaries. A text knows of each of its
// bytes whether the template wrote it or the conversation, so that a message cannot forge a special token,
// and so that what an assistant says is found again in the rendered text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::jinja {

// Who wrote a byte. 0, 1, ...: the message with this number.
using Origin = int32_t;
inline constexpr Origin kTemplate = -1;   // the template, or the program
inline constexpr Origin kOtherData = -2;  // the sample, but not the content of a message: a role, a tool

// Bytes in UTF-8, each with its origin
class Text {
 public:
  struct Run {  // the bytes from the end of the run before up to `end`
    size_t end;
    Origin origin;
    bool operator==(const Run&) const = default;
  };

  Text() = default;
  Text(std::string bytes, Origin origin = kTemplate);

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  Origin origin_at(size_t at) const;

  void append(std::string_view bytes, Origin origin);
  void append(const Text& text) { append(text, 0, text.size()); }
  void append(const Text& text, size_t first, size_t count);  // that part of `text`
  Text part(size_t first, size_t count = std::string::npos) const;
  // Part `first` up to `last` of its characters, as Python counts: code points
  Text characters(int64_t first, int64_t last, int64_t step = 1) const;
  int64_t length() const;  // in code points

 private:
  std::string bytes_;
  std::vector<Run> runs_;  // neighbours have different origins; the last one ends at the end
};

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Text, Value>>;  // in the order in which the keys came

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

struct Undefined {
  std::string name;  // of what is not defined, for messages
};
struct None {};
// The only value that a template may change: namespace().
struct Namespace {
  Dict fields;
};

class Value {
 public:
  using Kind = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                            std::shared_ptr<Namespace>, std::shared_ptr<const Callable>>;

  Value() : kind_(None{}) {}
  Value(Undefined undefined) : kind_(std::move(undefined)) {}
  Value(bool truth) : kind_(truth) {}
  Value(int64_t number) : kind_(number) {}
  Value(double number) : kind_(number) {}
  Value(Text text) : kind_(std::make_shared<const Text>(std::move(text))) {}
  Value(const char* text) : Value(Text(text)) {}
  Value(List list) : kind_(std::make_shared<const List>(std::move(list))) {}
  Value(Dict dict) : kind_(std::make_shared<const Dict>(std::move(dict))) {}
  Value(std::shared_ptr<Namespace> fields) : kind_(std::move(fields)) {}
  Value(Callable callable) : kind_(std::make_shared<const Callable>(std::move(callable))) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(kind_); }
  bool is_none() const { return std::holds_alternative<None>(kind_); }
  const bool* truth_value() const { return std::get_if<bool>(&kind_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&kind_); }
  const double* real() const { return std::get_if<double>(&kind_); }
  const Text* text() const { return of<const Text>(); }
  const List* list() const { return of<const List>(); }
  const Dict* dict() const { return of<const Dict>(); }
  Namespace* fields() const { return of<Namespace>(); }
  const Callable* callable() const { return of<const Callable>(); }
  const Undefined* undefined() const { return std::get_if<Undefined>(&kind_); }

  bool is_number() const { return integer() || real() || truth_value(); }  // as in Python, True is 1
  bool is_whole() const { return integer() || truth_value(); }
  int64_t whole() const { return integer() ? *integer() : static_cast<int64_t>(*truth_value()); }
  double number() const { return real() ? *real() : static_cast<double>(whole()); }

  bool is_true() const;           // as Python's bool()
  const char* type_name() const;  // Python's: "str"

 private:
  template <class T>
  T* of() const {
    const auto* held = std::get_if<std::shared_ptr<T>>(&kind_);
    return held ? held->get() : nullptr;
  }
  Kind kind_;
};

const Value* find(const Dict& dict, std::string_view key);

bool equal(const Value& a, const Value& b);  // Python's ==
// -1, 0 or 1. Error: the values have no order
int compare(const Value& a, const Value& b);

// Python's str() and repr(). An undefined value is no text.
Text to_text(const Value& value);
Text representation(const Value& value);

struct JsonStyle {
  int indent = -1;  // -1: all on one line
  bool ascii = false, sorted = false;
  std::string comma = ", ", colon = ": ";
};
// Python's json.dumps. Error: a value that JSON does not have
Text to_json(const Value& value, const JsonStyle& style = {});

// All texts of `json` get `origin`.
Value value_of(const nlohmann::ordered_json& json, Origin origin);

}  // namespace tessera::jinja

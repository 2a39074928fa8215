#include "data/chat/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

bool starts_character(char byte) { return (byte & 0xC0) != 0x80; }

// As Python's repr(): the shortest digits that give the number back
std::string digits_of(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::fabs(number);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string digits(buffer, end.ptr);
  if (plain && digits.find('.') == digits.npos) digits += ".0";
  return digits;
}

void append_escaped(Text& out, const char* prefix, uint32_t code, int digits, Origin origin) {
  out.append(fmt::format("{}{:0{}x}", prefix, code, digits), origin);
}

// Calls on_character(code point, its bytes, their origin) for each character.
template <class OnCharacter>
void for_each_character(const Text& text, const OnCharacter& on_character) {
  const std::string_view bytes = text.bytes();
  size_t at = 0;
  for (const Text::Run& run : text.runs())
    while (at < run.end) {
      const auto next = first_code_point(bytes.substr(at));
      const CodePoint point = next.value_or(CodePoint{.code = 0xFFFD, .bytes = 1});
      on_character(point.code, bytes.substr(at, point.bytes), run.origin);
      at += point.bytes;
    }
}

bool has_place(uint32_t code) {  // C1 controls, and blanks that repr() escapes
  return !(code >= 0x7F && code < 0xA0) && code != 0xAD && code != 0x2028 && code != 0x2029;
}

Text quoted(const Text& text) {
  const bool single =
      text.bytes().find('\'') == std::string::npos || text.bytes().find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  Text out(std::string(1, quote));
  for_each_character(text, [&](uint32_t code, std::string_view bytes, Origin origin) {
    if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      out.append("\\", origin);
      out.append(bytes, origin);
    } else if (code == '\n') {
      out.append("\\n", origin);
    } else if (code == '\r') {
      out.append("\\r", origin);
    } else if (code == '\t') {
      out.append("\\t", origin);
    } else if (code < 0x20 || (!has_place(code) && code < 0x100)) {
      append_escaped(out, "\\x", code, 2, origin);
    } else if (!has_place(code)) {
      append_escaped(out, "\\u", code, 4, origin);
    } else {
      out.append(bytes, origin);
    }
  });
  out.append(std::string(1, quote), kTemplate);
  return out;
}

void append_json_text(Text& out, const Text& text, bool ascii) {
  out.append("\"", kTemplate);
  for_each_character(text, [&](uint32_t code, std::string_view bytes, Origin origin) {
    static constexpr std::string_view kNamed = "\"\"\\\\\bb\ff\nn\rr\tt";
    if (const size_t at = code < 0x80 ? kNamed.find(static_cast<char>(code)) : kNamed.npos;
        at != kNamed.npos && at % 2 == 0) {
      out.append("\\", origin);
      out.append(kNamed.substr(at + 1, 1), origin);
    } else if (code < 0x20 || (ascii && code >= 0x7F && code < 0x10000)) {
      append_escaped(out, "\\u", code, 4, origin);
    } else if (ascii && code >= 0x10000) {
      append_escaped(out, "\\u", 0xD800 + ((code - 0x10000) >> 10), 4, origin);
      append_escaped(out, "\\u", 0xDC00 + ((code - 0x10000) & 0x3FF), 4, origin);
    } else {
      out.append(bytes, origin);
    }
  });
  out.append("\"", kTemplate);
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int depth) {
    if (const Text* text = value.text()) {
      append_json_text(out, *text, style_.ascii);
    } else if (const List* list = value.list()) {
      write_all('[', ']', list->size(), depth, [&](size_t i) { write((*list)[i], depth + 1); });
    } else if (const Dict* dict = value.dict()) {
      std::vector<size_t> order(dict->size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      if (style_.sorted)
        std::ranges::stable_sort(order, {},
                                 [&](size_t i) -> const std::string& { return (*dict)[i].first.bytes(); });
      write_all('{', '}', dict->size(), depth, [&](size_t i) {
        append_json_text(out, (*dict)[order[i]].first, style_.ascii);
        out.append(style_.colon, kTemplate);
        write((*dict)[order[i]].second, depth + 1);
      });
    } else if (const bool* truth = value.truth_value()) {
      out.append(*truth ? "true" : "false", kTemplate);
    } else if (value.is_none()) {
      out.append("null", kTemplate);
    } else if (const double* number = value.real(); number && !std::isfinite(*number)) {
      out.append(std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity", kTemplate);
    } else {
      check(value.is_number(), "tojson: a value of type {} is not JSON", value.type_name());
      out.append(to_text(value));
    }
  }

  Text out;

 private:
  template <class WriteOne>
  void write_all(char open, char close, size_t count, int depth, const WriteOne& write_one) {
    out.append(std::string(1, open), kTemplate);
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out.append(style_.comma, kTemplate);
      new_line(depth + 1);
      write_one(i);
    }
    if (count > 0) new_line(depth);
    out.append(std::string(1, close), kTemplate);
  }
  void new_line(int depth) {
    if (style_.indent >= 0)
      out.append("\n" + std::string(static_cast<size_t>(style_.indent * depth), ' '), kTemplate);
  }

  const JsonStyle& style_;
};

}  // namespace

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
}

Origin Text::origin_at(size_t at) const {
  const auto run = std::ranges::upper_bound(runs_, at, {}, &Run::end);
  return run == runs_.end() ? kTemplate : run->origin;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& text, size_t first, size_t count) {
  const size_t last = first + std::min(count, text.size() - std::min(first, text.size()));
  const std::string_view bytes = text.bytes_;
  auto run = std::ranges::upper_bound(text.runs_, first, {}, &Run::end);
  for (size_t at = first; at < last; ++run) {
    const size_t end = std::min(run->end, last);
    append(bytes.substr(at, end - at), run->origin);
    at = end;
  }
}

Text Text::part(size_t first, size_t count) const {
  Text out;
  out.append(*this, first, count);
  return out;
}

int64_t Text::length() const { return std::ranges::count_if(bytes_, starts_character); }

Text Text::characters(int64_t first, int64_t last, int64_t step) const {
  std::vector<size_t> starts;
  for (size_t at = 0; at < bytes_.size(); ++at)
    if (starts_character(bytes_[at])) starts.push_back(at);
  starts.push_back(bytes_.size());
  const auto start_of = [&](int64_t character) { return starts[static_cast<size_t>(character)]; };
  if (step == 1) return first < last ? part(start_of(first), start_of(last) - start_of(first)) : Text();
  Text out;
  for (int64_t at = first; step > 0 ? at < last : at > last; at += step)
    out.append(*this, start_of(at), start_of(at + 1) - start_of(at));
  return out;
}

bool Value::is_true() const {
  if (const bool* truth = truth_value()) return *truth;
  if (is_number()) return number() != 0;
  if (const Text* held = text()) return !held->empty();
  if (const List* held = list()) return !held->empty();
  if (const Dict* held = dict()) return !held->empty();
  return fields() || callable();
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"undefined", "NoneType", "bool", "int",       "float",
                                           "str",       "list",     "dict", "namespace", "function"};
  return kNames[kind_.index()];
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict)
    if (name.bytes() == key) return &value;
  return nullptr;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_whole() && b.is_whole() ? a.whole() == b.whole() : a.number() == b.number();
  if (a.text() && b.text()) return a.text()->bytes() == b.text()->bytes();
  if (a.list() && b.list()) return std::ranges::equal(*a.list(), *b.list(), equal);
  if (a.dict() && b.dict())
    return a.dict()->size() == b.dict()->size() && std::ranges::all_of(*a.dict(), [&](const auto& field) {
             const Value* other = find(*b.dict(), field.first.bytes());
             return other && equal(field.second, *other);
           });
  if (a.fields() || b.fields()) return a.fields() == b.fields();
  if (a.callable() || b.callable()) return a.callable() == b.callable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() < b.number() ? -1 : b.number() < a.number();
  if (a.text() && b.text()) {  // the order of UTF-8 is that of the code points
    const int order = a.text()->bytes().compare(b.text()->bytes());
    return order < 0 ? -1 : order > 0;
  }
  if (a.list() && b.list()) {
    for (size_t i = 0; i < a.list()->size() && i < b.list()->size(); ++i)
      if (!equal((*a.list())[i], (*b.list())[i])) return compare((*a.list())[i], (*b.list())[i]);
    return a.list()->size() < b.list()->size() ? -1 : b.list()->size() < a.list()->size();
  }
  fail("{} and {} have no order", a.type_name(), b.type_name());
}

Text to_text(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.is_undefined()) return {};
  return representation(value);
}

Text representation(const Value& value) {
  if (const Text* text = value.text()) return quoted(*text);
  if (value.is_undefined()) return Text("Undefined");
  if (value.is_none()) return Text("None");
  if (const bool* truth = value.truth_value()) return Text(*truth ? "True" : "False");
  if (const int64_t* whole = value.integer()) return Text(fmt::format("{}", *whole));
  if (const double* number = value.real()) return Text(digits_of(*number));
  Text out;
  if (const List* list = value.list()) {
    out.append("[", kTemplate);
    for (const Value& one : *list) {
      if (out.size() > 1) out.append(", ", kTemplate);
      out.append(representation(one));
    }
    out.append("]", kTemplate);
    return out;
  }
  if (const Dict* dict = value.dict()) {
    out.append("{", kTemplate);
    for (const auto& [key, one] : *dict) {
      if (out.size() > 1) out.append(", ", kTemplate);
      out.append(quoted(key));
      out.append(": ", kTemplate);
      out.append(representation(one));
    }
    out.append("}", kTemplate);
    return out;
  }
  fail("a {} has no text", value.type_name());
}

Text to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

Value value_of(const nlohmann::ordered_json& json, Origin origin) {
  using nlohmann::ordered_json;
  switch (json.type()) {
    case ordered_json::value_t::string:
      return Text(json.get<std::string>(), origin);
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        return static_cast<double>(json.get<uint64_t>());
      return json.get<int64_t>();
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::array: {
      List list;
      for (const auto& one : json) list.push_back(value_of(one, origin));
      return list;
    }
    case ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, one] : json.items()) dict.emplace_back(Text(key, origin), value_of(one, origin));
      return dict;
    }
    default:
      return {};
  }
}

}  // namespace tessera::jinja

#include "data/chat/writing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "data/chat/letters.h"
#include "data/chat/loop.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kStepsOfCharacter = 8;  // characters that are looked at in the time of one step

// Calls on_character(code point, its bytes, their origin) for each character.
template <class OnCharacter>
void for_each_character(const Text& text, const OnCharacter& on_character) {
  const std::string_view bytes = text.bytes();
  Budget::spend(static_cast<int64_t>(bytes.size()) / kStepsOfCharacter);
  size_t at = 0;
  for (const Text::Run& run : text.runs())
    while (at < run.end) {
      const auto next = first_code_point(bytes.substr(at, 4));
      const CodePoint point = next.value_or(CodePoint{.code = 0xFFFD, .bytes = 1});
      on_character(point.code, bytes.substr(at, point.bytes), run.origin);
      at += point.bytes;
    }
}

void append_escaped(Text& out, const char* prefix, uint32_t code, int digits, Origin origin) {
  out.append(fmt::format("{}{:0{}x}", prefix, code, digits), origin);
}
void append_python_escape(Text& out, uint32_t code, Origin origin) {
  if (code < 0x100)
    append_escaped(out, "\\x", code, 2, origin);
  else if (code < 0x10000)
    append_escaped(out, "\\u", code, 4, origin);
  else
    append_escaped(out, "\\U", code, 8, origin);
}

void append_quoted(Text& out, const Text& text) {
  const bool single =
      text.bytes().find('\'') == std::string::npos || text.bytes().find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  out.append(1, quote);
  for_each_character(text, [&](uint32_t code, std::string_view bytes, Origin origin) {
    if (code == '\\' || code == static_cast<uint32_t>(quote)) {
      out.append("\\", origin);
      out.append(bytes, origin);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out.append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t", origin);
    } else if (has_property(code, kPrintable)) {
      out.append(bytes, origin);
    } else {
      append_python_escape(out, code, origin);
    }
  });
  out.append(1, quote);
}

class Writer {
 public:
  void write(const Value& value) {
    Budget::spend(1);
    if (const Text* text = value.text()) return append_quoted(out, *text);
    if (const Sequence* sequence = value.sequence()) return write_sequence(*sequence);
    if (const Dict* dict = value.dict()) {
      out.append("{", kTemplate);
      for (const auto& [key, one] : *dict) {
        if (&key != &dict->front().first) out.append(", ", kTemplate);
        write(key.value());
        out.append(": ", kTemplate);
        write(one);
      }
      return out.append("}", kTemplate);
    }
    out.append(plain(value), kTemplate);
  }

  static std::string plain(const Value& value) {
    if (value.is_undefined()) return "Undefined";
    if (value.is_none()) return "None";
    if (const bool* truth = value.truth_value()) return *truth ? "True" : "False";
    if (const int64_t* whole = value.integer()) return fmt::format("{}", *whole);
    if (const double* number = value.real()) return digits_of(*number);
    if (value.big()) return value.big()->digits;
    if (value.loop())
      return fmt::format("<LoopContext {}/{}>", (*value.loop())->at + 1, (*value.loop())->length);
    fail("a {} is not supported as a text", value.type_name());
  }

  Text out;

 private:
  void write_sequence(const Sequence& sequence) {
    const auto all = [&](const char* open, const char* close) {
      out.append(open, kTemplate);
      for (const Value& one : sequence.items) {
        if (&one != &sequence.items.front()) out.append(", ", kTemplate);
        write(one);
      }
      out.append(close, kTemplate);
    };
    const auto [first, last, step] = sequence.bounds;
    switch (sequence.form) {
      case Form::kList:
        return all("[", "]");
      case Form::kTuple:
        return all("(", sequence.items.size() == 1 ? ",)" : ")");
      case Form::kRange:
        return out.append(step == 1 ? fmt::format("range({}, {})", first, last)
                                    : fmt::format("range({}, {}, {})", first, last, step),
                          kTemplate);
      case Form::kKeys:
        return all("dict_keys([", "])");
      case Form::kValues:
        return all("dict_values([", "])");
      case Form::kItems:
        return all("dict_items([", "])");
      case Form::kIterator:
        fail("a generator is not supported as a text: Python writes its address; | list makes a list of it");
    }
  }
};

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
    Budget::spend(1);
    if (const Text* text = value.text()) {
      append_json_text(out, *text, style_.ascii);
    } else if (const List* list = value.list()) {
      write_all('[', ']', list->size(), depth, [&](size_t i) { write((*list)[i], depth + 1); });
    } else if (const Dict* dict = value.dict()) {
      std::vector<size_t> order(dict->size());
      std::iota(order.begin(), order.end(), size_t{0});
      if (style_.sorted)
        std::ranges::stable_sort(order, [&](size_t a, size_t b) {
          return compare((*dict)[a].first.value(), (*dict)[b].first.value()) < 0;
        });
      write_all('{', '}', dict->size(), depth, [&](size_t i) {
        write_key((*dict)[order[i]].first);
        out.append(style_.colon);
        write((*dict)[order[i]].second, depth + 1);
      });
    } else {
      out.append(plain(value), kTemplate);
    }
  }

  Text out;

 private:
  static std::string plain(const Value& value) {
    if (const bool* truth = value.truth_value()) return *truth ? "true" : "false";
    if (value.is_none()) return "null";
    if (const double* number = value.real(); number && !std::isfinite(*number))
      return std::isnan(*number) ? "NaN" : *number > 0 ? "Infinity" : "-Infinity";
    check_defined(value);
    check(value.is_number() || value.big(), "tojson: a value of type {} is not JSON", value.type_name());
    return Writer::plain(value);
  }
  void write_key(const Key& key) {
    if (key.text()) return append_json_text(out, *key.text(), style_.ascii);
    check(!key.value().tuple(), "tojson: a tuple is no key of JSON");
    append_json_text(out, Text(plain(key.value())), style_.ascii);
  }
  template <class WriteOne>
  void write_all(char open, char close, size_t count, int depth, const WriteOne& write_one) {
    out.append(1, open);
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out.append(style_.comma);
      new_line(depth + 1);
      write_one(i);
    }
    if (count > 0) new_line(depth);
    out.append(1, close);
  }
  void new_line(int depth) {
    if (!style_.on_lines) return;
    out.append(1, '\n');
    for (int i = 0; i < depth; ++i) out.append(style_.indent);
  }

  const JsonStyle& style_;
};

}  // namespace

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

Text to_text(const Value& value) {
  if (const Text* text = value.text()) return *text;
  return value.is_undefined() ? Text() : representation(value);
}

Text representation(const Value& value) {
  Writer writer;
  writer.write(value);
  return std::move(writer.out);
}

Text in_ascii(const Text& representation) {
  Text out;
  for_each_character(representation, [&](uint32_t code, std::string_view bytes, Origin origin) {
    if (code < 0x80)
      out.append(bytes, origin);
    else
      append_python_escape(out, code, origin);
  });
  return out;
}

Text to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace tessera::jinja

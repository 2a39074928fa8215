#include "data/chat/text_methods.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include "data/chat/arguments.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

// Python's str.isspace()
bool is_blank(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

size_t bytes_of_first(std::string_view text) {
  const auto first = first_code_point(text);
  return first ? first->bytes : 1;
}
std::string_view last_character(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && bytes < 4 && (text[text.size() - bytes] & 0xC0) == 0x80) ++bytes;
  return text.substr(text.size() - bytes);
}
bool is_blank(std::string_view character) {
  const auto point = first_code_point(character);
  return point && is_blank(point->code);
}

template <class IsStripped>
size_t stripped_at_start(std::string_view text, const IsStripped& is_stripped) {
  size_t at = 0;
  while (at < text.size() && is_stripped(text.substr(at, bytes_of_first(text.substr(at)))))
    at += bytes_of_first(text.substr(at));
  return at;
}
template <class IsStripped>
size_t stripped_at_end(std::string_view text, const IsStripped& is_stripped) {
  size_t end = text.size();
  while (end > 0 && is_stripped(last_character(text.substr(0, end))))
    end -= last_character(text.substr(0, end)).size();
  return text.size() - end;
}

void check_ascii(const Text& text, const char* callee) {
  const bool ascii = std::ranges::none_of(text.bytes(), [](char c) { return (c & 0x80) != 0; });
  check(ascii, "{} of {}: only ASCII letters are supported", callee, in_quotes(text.bytes()));
}

// Each byte through `change`, which is told whether a letter stands before it
template <class Change>
Text changed(const Text& text, const char* callee, const Change& change) {
  check_ascii(text, callee);
  Text out;
  bool after_letter = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes()[at];
    const char made = static_cast<char>(change(static_cast<unsigned char>(c), after_letter, at));
    out.append({&made, 1}, text.origin_at(at));
    after_letter = std::isalpha(static_cast<unsigned char>(c));
  }
  return out;
}

Text trimmed_argument(const Text& text, const Arguments& arguments, Sides sides, const char* callee) {
  const auto bound = bind(arguments, callee, {"chars"});
  if (bound[0] == nullptr || bound[0]->is_none()) return strip(text, sides);
  return strip(text, sides, &text_of(bound[0], callee));
}

// Python's split(sep, maxsplit) and rsplit()
List split(const Text& text, const Text* separator, int64_t most, bool from_right) {
  check(separator != nullptr || !from_right || most < 0, "rsplit: a number of parts needs a separator");
  std::vector<Text> parts;
  size_t first = 0, end = text.size();
  const std::string_view bytes = text.bytes();
  const auto may = [&] { return most < 0 || std::ssize(parts) < most; };
  if (separator == nullptr) {
    first = blanks_at_start(bytes);
    while (first < end) {
      size_t at = first;
      while (at < end && !is_blank(bytes.substr(at, bytes_of_first(bytes.substr(at)))))
        at += bytes_of_first(bytes.substr(at));
      const bool last = !may();
      parts.push_back(last ? strip(text.part(first), {.left = false}) : text.part(first, at - first));
      if (last) break;
      first = at + blanks_at_start(bytes.substr(at));
    }
  } else if (from_right) {
    const std::string& mark = separator->bytes();
    for (size_t at;
         may() && end >= mark.size() && (at = bytes.rfind(mark, end - mark.size())) != bytes.npos;) {
      parts.push_back(text.part(at + mark.size(), end - at - mark.size()));
      end = at;
    }
    parts.push_back(text.part(0, end));
    std::ranges::reverse(parts);
  } else {
    const std::string& mark = separator->bytes();
    for (size_t at; may() && (at = bytes.find(mark, first)) != bytes.npos; first = at + mark.size())
      parts.push_back(text.part(first, at - first));
    parts.push_back(text.part(first));
  }
  return {parts.begin(), parts.end()};
}

List split_by(const Text& text, const Arguments& arguments, const char* callee, bool from_right) {
  const auto bound = bind(arguments, callee, {"sep", "maxsplit"});
  const bool at_blanks = bound[0] == nullptr || bound[0]->is_none();
  const Text* separator = at_blanks ? nullptr : &text_of(bound[0], callee);
  check(separator == nullptr || !separator->empty(), "{}: the separator is empty", callee);
  return split(text, separator, whole_of(bound[1], callee, -1), from_right);
}

List lines_of(const Text& text, bool keep_ends) {
  List lines;
  const std::string& bytes = text.bytes();
  for (size_t first = 0; first < bytes.size();) {
    const size_t end = std::min(bytes.find_first_of("\n\r\v\f\x1c\x1d\x1e", first), bytes.size());
    const size_t next = std::min(end + (bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1), bytes.size());
    lines.push_back(text.part(first, (keep_ends ? next : end) - first));
    first = next;
  }
  return lines;
}

// startswith and endswith take a text, or several
Value has_at(const Text& text, const Arguments& arguments, const char* callee, bool at_start) {
  const auto bound = bind(arguments, callee, {"text"}, 1);
  const auto has = [&](const Value& value) {
    const std::string& part = text_of(&value, callee).bytes();
    return at_start ? text.bytes().starts_with(part) : text.bytes().ends_with(part);
  };
  if (const List* several = bound[0]->list()) return std::ranges::any_of(*several, has);
  return has(*bound[0]);
}

int64_t characters_before(const Text& text, size_t at) { return text.part(0, at).length(); }

Value find_in(const Text& text, const Arguments& arguments, const char* callee, bool last) {
  const std::string& part = text_of(bind(arguments, callee, {"text"}, 1)[0], callee).bytes();
  const size_t at = last ? text.bytes().rfind(part) : text.bytes().find(part);
  return at == std::string::npos ? int64_t{-1} : characters_before(text, at);
}

bool all_are(const Text& text, int (*is)(int), const char* callee) {
  check_ascii(text, callee);
  return !text.empty() &&
         std::ranges::all_of(text.bytes(), [&](char c) { return is(static_cast<unsigned char>(c)); });
}

using Method = Value (*)(const Text&, const Arguments&);
const std::map<std::string, Method, std::less<>>& methods() {
  static const std::map<std::string, Method, std::less<>> kMethods{
      {"strip",
       [](const Text& t, const Arguments& a) -> Value { return trimmed_argument(t, a, {}, "strip"); }},
      {"lstrip",
       [](const Text& t, const Arguments& a) -> Value {
         return trimmed_argument(t, a, {.right = false}, "lstrip");
       }},
      {"rstrip",
       [](const Text& t, const Arguments& a) -> Value {
         return trimmed_argument(t, a, {.left = false}, "rstrip");
       }},
      {"split", [](const Text& t, const Arguments& a) -> Value { return split_by(t, a, "split", false); }},
      {"rsplit", [](const Text& t, const Arguments& a) -> Value { return split_by(t, a, "rsplit", true); }},
      {"splitlines",
       [](const Text& t, const Arguments& a) -> Value {
         return lines_of(t, truth_of(bind(a, "splitlines", {"keepends"})[0]));
       }},
      {"startswith", [](const Text& t, const Arguments& a) { return has_at(t, a, "startswith", true); }},
      {"endswith", [](const Text& t, const Arguments& a) { return has_at(t, a, "endswith", false); }},
      {"replace",
       [](const Text& t, const Arguments& a) -> Value {
         const auto bound = bind(a, "replace", {"old", "new", "count"}, 2);
         return replace(t, text_of(bound[0], "replace").bytes(), text_of(bound[1], "replace"),
                        whole_of(bound[2], "replace", -1));
       }},
      {"removeprefix",
       [](const Text& t, const Arguments& a) -> Value {
         const std::string& part = text_of(bind(a, "removeprefix", {"prefix"}, 1)[0], "removeprefix").bytes();
         return t.bytes().starts_with(part) ? t.part(part.size()) : t;
       }},
      {"removesuffix",
       [](const Text& t, const Arguments& a) -> Value {
         const std::string& part = text_of(bind(a, "removesuffix", {"suffix"}, 1)[0], "removesuffix").bytes();
         return t.bytes().ends_with(part) ? t.part(0, t.size() - part.size()) : t;
       }},
      {"find", [](const Text& t, const Arguments& a) { return find_in(t, a, "find", false); }},
      {"rfind", [](const Text& t, const Arguments& a) { return find_in(t, a, "rfind", true); }},
      {"count",
       [](const Text& t, const Arguments& a) -> Value {
         const std::string& part = text_of(bind(a, "count", {"text"}, 1)[0], "count").bytes();
         if (part.empty()) return t.length() + 1;
         int64_t count = 0;
         for (size_t at = 0; (at = t.bytes().find(part, at)) != std::string::npos; at += part.size()) ++count;
         return count;
       }},
      {"join",
       [](const Text& t, const Arguments& a) -> Value {
         const Value& texts = *bind(a, "join", {"texts"}, 1)[0];
         check(texts.list() != nullptr, "join expects a list, and a {} is given", texts.type_name());
         return join(*texts.list(), t);
       }},
      {"upper", [](const Text& t, const Arguments&) -> Value { return in_upper_case(t); }},
      {"lower", [](const Text& t, const Arguments&) -> Value { return in_lower_case(t); }},
      {"capitalize", [](const Text& t, const Arguments&) -> Value { return capitalized(t); }},
      {"title", [](const Text& t, const Arguments&) -> Value { return titled(t, true); }},
      {"isdigit",
       [](const Text& t, const Arguments&) -> Value { return all_are(t, std::isdigit, "isdigit"); }},
      {"isalpha",
       [](const Text& t, const Arguments&) -> Value { return all_are(t, std::isalpha, "isalpha"); }},
      {"isalnum",
       [](const Text& t, const Arguments&) -> Value { return all_are(t, std::isalnum, "isalnum"); }},
      {"isspace",
       [](const Text& t, const Arguments&) -> Value {
         return !t.empty() && blanks_at_start(t.bytes()) == t.size();
       }},
  };
  return kMethods;
}

}  // namespace

size_t blanks_at_start(std::string_view text) {
  return stripped_at_start(text, [](std::string_view character) { return is_blank(character); });
}

size_t blanks_at_end(std::string_view text) {
  return stripped_at_end(text, [](std::string_view character) { return is_blank(character); });
}

Text strip(const Text& text, Sides sides, const Text* characters) {
  const auto is_stripped = [&](std::string_view character) {
    return characters ? characters->bytes().find(character) != std::string::npos : is_blank(character);
  };
  const size_t first = sides.left ? stripped_at_start(text.bytes(), is_stripped) : 0;
  const std::string_view rest = std::string_view(text.bytes()).substr(first);
  return text.part(first, rest.size() - (sides.right ? stripped_at_end(rest, is_stripped) : 0));
}

Text replace(const Text& text, std::string_view old, const Text& with, int64_t most) {
  check(!old.empty(), "replace: the text to replace is empty");
  Text out;
  size_t first = 0;
  for (size_t at; most != 0 && (at = text.bytes().find(old, first)) != std::string::npos; --most) {
    out.append(text, first, at - first);
    out.append(with);
    first = at + old.size();
  }
  out.append(text, first, text.size() - first);
  return out;
}

Value text_method(const Text& text, std::string_view name) {
  const auto found = methods().find(name);
  if (found == methods().end()) return Undefined{std::string(name)};
  return Callable{.name = found->first,
                  .call = [text, method = found->second](const Arguments& a) { return method(text, a); }};
}

Text join(const List& texts, const Text& between) {
  Text out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out.append(between);
    out.append(to_text(texts[i]));
  }
  return out;
}

Text in_upper_case(const Text& text) {
  return changed(text, "upper", [](int c, bool, size_t) { return std::toupper(c); });
}
Text in_lower_case(const Text& text) {
  return changed(text, "lower", [](int c, bool, size_t) { return std::tolower(c); });
}
Text capitalized(const Text& text) {
  return changed(text, "capitalize",
                 [](int c, bool, size_t at) { return at == 0 ? std::toupper(c) : std::tolower(c); });
}
Text titled(const Text& text, bool like_python) {
  bool begins = true;
  return changed(text, "title", [&](int c, bool after_letter, size_t) {
    const bool first = like_python ? !after_letter : begins;
    begins = std::isspace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    return first ? std::toupper(c) : std::tolower(c);
  });
}

}  // namespace tessera::jinja

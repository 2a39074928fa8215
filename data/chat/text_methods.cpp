#include "data/chat/text_methods.h"

#include <algorithm>
#include <array>
#include <map>

#include "data/chat/arguments.h"
#include "data/chat/letters.h"
#include "data/chat/operators.h"
#include "data/chat/text_parts.h"
#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

using Method = Value (*)(const Text&, const Arguments&);
using Methods = std::map<std::string, Method, std::less<>>;

Text stripped(const Text& text, const Arguments& arguments, Sides sides, const char* callee) {
  const auto bound = bind(arguments, callee, {"chars"});
  return is_given(bound[0]) ? strip(text, sides, &text_of(bound[0], callee)) : strip(text, sides);
}

List split_by(const Text& text, const Arguments& arguments, const char* callee, bool from_right) {
  const auto bound = bind(arguments, callee, {"sep", "maxsplit"});
  const Text* separator = is_given(bound[0]) ? &text_of(bound[0], callee) : nullptr;
  check(separator == nullptr || !separator->empty(), "{}: the separator is empty", callee);
  const int64_t most = whole_of(bound[1], callee, -1);
  return from_right ? split_from_right(text, separator, most) : split(text, separator, most);
}

Value partitioned(const Text& text, const Arguments& arguments, const char* callee, bool last) {
  const Text& mark = text_of(bind(arguments, callee, {"sep"}, 1)[0], callee);
  check(!mark.empty(), "{}: the separator is empty", callee);
  Budget::spend_bytes(text.size());
  const size_t at = last ? text.bytes().rfind(mark.bytes()) : text.bytes().find(mark.bytes());
  if (at == std::string::npos)
    return {Form::kTuple, last ? List{Text(), Text(), text} : List{text, Text(), Text()}};
  return {Form::kTuple, List{text.part(0, at), mark, text.part(at + mark.size())}};
}

// The bytes of a text from `start` to `stop`, where it is searched
struct Searched {
  std::string_view bytes;
  size_t first;
  bool is_empty;  // start is beyond stop or the end: not even an empty text is found
};
Searched searched_in(const Text& text, const Value* start, const Value* stop) {
  const Bounded range = bounded(start, stop, text.length());
  const size_t first = text.place_of(range.first), last = std::max(text.place_of(range.last), first);
  Budget::spend_bytes(last - first);
  return {.bytes = std::string_view(text.bytes()).substr(first, last - first),
          .first = first,
          .is_empty = range.first > range.last};
}

// startswith and endswith take a text, or several
Value has_at(const Text& text, const Arguments& arguments, const char* callee, bool at_start) {
  const auto bound = bind(arguments, callee, {"text", "start", "end"}, 1);
  const Searched in = searched_in(text, bound[1], bound[2]);
  const auto has = [&](const Value& value) {
    const std::string& part = text_of(&value, callee).bytes();
    return !in.is_empty && (at_start ? in.bytes.starts_with(part) : in.bytes.ends_with(part));
  };
  if (const List* several = bound[0]->tuple()) return std::ranges::any_of(*several, has);
  return has(*bound[0]);
}

Value find_in(const Text& text, const Arguments& arguments, const char* callee, bool last) {
  const auto bound = bind(arguments, callee, {"text", "start", "end"}, 1);
  const std::string& part = text_of(bound[0], callee).bytes();
  const Searched in = searched_in(text, bound[1], bound[2]);
  const size_t at = in.is_empty ? std::string::npos : last ? in.bytes.rfind(part) : in.bytes.find(part);
  return at == std::string::npos ? int64_t{-1} : text.length_before(in.first + at);
}
Value index_in(const Text& text, const Arguments& arguments, const char* callee, bool last) {
  const Value found = find_in(text, arguments, callee, last);
  check(found.whole() >= 0, "{}: the text is not found", callee);
  return found;
}

Value count_in(const Text& text, const Arguments& arguments) {
  const auto bound = bind(arguments, "count", {"text", "start", "end"}, 1);
  const std::string& part = text_of(bound[0], "count").bytes();
  const Searched in = searched_in(text, bound[1], bound[2]);
  if (in.is_empty) return int64_t{0};
  if (part.empty()) return Text(std::string(in.bytes)).length() + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = in.bytes.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

Text joined(const Text& between, const Arguments& arguments) {
  Text out;
  const auto list = elements_of(*bind(arguments, "join", {"texts"}, 1)[0]);
  for (const Value& one : list) {
    Budget::spend(1);
    if (&one != &list[0]) out.append(between);
    out.append(text_of(&one, "join"));
  }
  return out;
}

// ljust and rjust, and zfill
Text justified(const Text& text, const Arguments& arguments, const char* callee, bool at_right) {
  const auto bound = bind(arguments, callee, {"width", "fillchar"}, 1);
  static const Text kBlank(" ");
  const Text& fill = text_of(bound[1], callee, kBlank);
  check(fill.length() == 1, "{}: one character fills a text", callee);
  const int64_t missing = whole_of(bound[0], callee, 0) - text.length();
  Text out = at_right ? repeated(fill, missing) : text;
  out.append(at_right ? text : repeated(fill, missing));
  return out;
}
Text centered_text(const Text& text, const Arguments& arguments) {
  const auto bound = bind(arguments, "center", {"width", "fillchar"}, 1);
  static const Text kBlank(" ");
  const Text& fill = text_of(bound[1], "center", kBlank);
  check(fill.length() == 1, "center: one character fills a text");
  return centered(text, whole_of(bound[0], "center", 0), fill);
}
Text filled_with_zeros(const Text& text, const Arguments& arguments) {
  const int64_t missing = whole_of(bind(arguments, "zfill", {"width"}, 1)[0], "zfill", 0) - text.length();
  const bool has_sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  Text out = text.part(0, has_sign ? 1 : 0);
  out.append(repeated("0", missing));
  out.append(text.part(has_sign ? 1 : 0));
  return out;
}

Text with_blanks_for_tabs(const Text& text, const Arguments& arguments) {
  const int64_t width = whole_of(bind(arguments, "expandtabs", {"tabsize"})[0], "expandtabs", 8);
  Text out;
  int64_t column = 0;
  for (const Value& one : elements_of(text)) {
    const std::string& character = one.text()->bytes();
    if (character == "\t") {
      const int64_t blanks = width > 0 ? width - column % width : 0;
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
    } else {
      out.append(*one.text());
      column = character == "\n" || character == "\r" ? 0 : column + 1;
    }
  }
  return out;
}

Text without(const Text& text, const Arguments& arguments, const char* callee, bool at_start) {
  const std::string& part = text_of(bind(arguments, callee, {"part"}, 1)[0], callee).bytes();
  if (at_start) return text.bytes().starts_with(part) ? text.part(part.size()) : text;
  return text.bytes().ends_with(part) ? text.part(0, text.size() - part.size()) : text;
}

bool is_ascii(const Text& text) {
  Budget::spend_bytes(text.size());
  return text.length() == static_cast<int64_t>(text.size());
}
bool is_identifier(const Text& text) {
  check(is_ascii(text), "isidentifier of letters that are not ASCII is not supported");
  const bool begins = !text.empty() && !(text.bytes()[0] >= '0' && text.bytes()[0] <= '9');
  return begins && std::ranges::all_of(text.bytes(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
         });
}

// A method without arguments
template <auto kMethod>
Value plain(const Text& text, const Arguments& arguments) {
  bind(arguments, "the method of a text", {});
  return kMethod(text);
}
template <uint8_t kProperties>
Value has(const Text& text, const Arguments& arguments) {
  bind(arguments, "the method of a text", {});
  return has_only(text, kProperties);
}

const Methods& methods() {
  static const Methods kMethods{
      {"capitalize", plain<capitalized>},
      {"casefold", plain<in_folded_case>},
      {"center", [](const Text& t, const Arguments& a) -> Value { return centered_text(t, a); }},
      {"count", count_in},
      {"endswith", [](const Text& t, const Arguments& a) { return has_at(t, a, "endswith", false); }},
      {"expandtabs", [](const Text& t, const Arguments& a) -> Value { return with_blanks_for_tabs(t, a); }},
      {"find", [](const Text& t, const Arguments& a) { return find_in(t, a, "find", false); }},
      {"index", [](const Text& t, const Arguments& a) { return index_in(t, a, "index", false); }},
      {"isalnum", has<kAlphabetic | kDecimal | kDigit | kNumeric>},
      {"isalpha", has<kAlphabetic>},
      {"isascii", plain<is_ascii>},
      {"isdecimal", has<kDecimal>},
      {"isdigit", has<kDigit>},
      {"isidentifier", plain<is_identifier>},
      {"islower", plain<all_lower>},
      {"isnumeric", has<kNumeric>},
      {"isprintable",
       [](const Text& t, const Arguments&) -> Value { return t.empty() || has_only(t, kPrintable); }},
      {"isspace",
       [](const Text& t, const Arguments&) -> Value {
         return !t.empty() && blanks_at_start(t.bytes()) == t.size();
       }},
      {"istitle", plain<all_titled>},
      {"isupper", plain<all_upper>},
      {"join", [](const Text& t, const Arguments& a) -> Value { return joined(t, a); }},
      {"ljust", [](const Text& t, const Arguments& a) -> Value { return justified(t, a, "ljust", false); }},
      {"lower", plain<in_lower_case>},
      {"lstrip",
       [](const Text& t, const Arguments& a) -> Value { return stripped(t, a, {.right = false}, "lstrip"); }},
      {"partition", [](const Text& t, const Arguments& a) { return partitioned(t, a, "partition", false); }},
      {"removeprefix",
       [](const Text& t, const Arguments& a) -> Value { return without(t, a, "removeprefix", true); }},
      {"removesuffix",
       [](const Text& t, const Arguments& a) -> Value { return without(t, a, "removesuffix", false); }},
      {"replace",
       [](const Text& t, const Arguments& a) -> Value {
         const auto bound = bind(a, "replace", {"old", "new", "count"}, 2);
         return replace(t, text_of(bound[0], "replace"), text_of(bound[1], "replace"),
                        whole_of(bound[2], "replace", -1));
       }},
      {"rfind", [](const Text& t, const Arguments& a) { return find_in(t, a, "rfind", true); }},
      {"rindex", [](const Text& t, const Arguments& a) { return index_in(t, a, "rindex", true); }},
      {"rjust", [](const Text& t, const Arguments& a) -> Value { return justified(t, a, "rjust", true); }},
      {"rpartition", [](const Text& t, const Arguments& a) { return partitioned(t, a, "rpartition", true); }},
      {"rsplit", [](const Text& t, const Arguments& a) -> Value { return split_by(t, a, "rsplit", true); }},
      {"rstrip",
       [](const Text& t, const Arguments& a) -> Value { return stripped(t, a, {.left = false}, "rstrip"); }},
      {"split", [](const Text& t, const Arguments& a) -> Value { return split_by(t, a, "split", false); }},
      {"splitlines",
       [](const Text& t, const Arguments& a) -> Value {
         return lines_of(t, truth_of(bind(a, "splitlines", {"keepends"})[0]));
       }},
      {"startswith", [](const Text& t, const Arguments& a) { return has_at(t, a, "startswith", true); }},
      {"strip", [](const Text& t, const Arguments& a) -> Value { return stripped(t, a, {}, "strip"); }},
      {"swapcase", plain<with_swapped_case>},
      {"title", plain<titled>},
      {"upper", plain<in_upper_case>},
      {"zfill", [](const Text& t, const Arguments& a) -> Value { return filled_with_zeros(t, a); }},
  };
  return kMethods;
}

}  // namespace

Value text_method(const Value& text, std::string_view name) {
  const auto found = methods().find(name);
  if (found == methods().end()) return Undefined{std::string(name)};
  return Callable{.name = found->first, .call = [text, method = found->second](const Arguments& a) {
                    return method(*text.text(), a);
                  }};
}

std::span<const char* const> unsupported_text_methods() {
  static constexpr std::array kNames{"encode", "maketrans", "translate"};
  return kNames;
}

}  // namespace tessera::jinja

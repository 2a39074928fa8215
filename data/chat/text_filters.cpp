#include <algorithm>

#include "data/chat/arguments.h"
#include "data/chat/filter_table.h"
#include "data/chat/formatting.h"
#include "data/chat/letters.h"
#include "data/chat/operators.h"
#include "data/chat/text_parts.h"
#include "data/chat/writing.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

Value tojson(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = truth_of(bound[0]), .sorted = truth_of(bound[3])};
  if (is_given(bound[1])) {
    style.on_lines = true;
    style.indent = bound[1]->text() ? *bound[1]->text() : repeated(" ", whole_of(bound[1], "tojson", 0));
    style.comma = ",";
  }
  if (is_given(bound[2])) {
    const List* pair = bound[2]->list();
    check(pair && pair->size() == 2, "tojson expects two separators");
    style.comma = text_of(&(*pair)[0], "tojson");
    style.colon = text_of(&(*pair)[1], "tojson");
  }
  return to_json(of, style);
}

Value indent(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "indent", {"width", "first", "blank"});
  const bool first = truth_of(bound[1]), blank = truth_of(bound[2]);
  const Text width =
      bound[0] && bound[0]->text() ? *bound[0]->text() : repeated(" ", whole_of(bound[0], "indent", 4));
  Text text = text_of(&of, "indent"), out;
  text.append("\n", kTemplate);
  const List lines = lines_of(text, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", kTemplate);
    if (i == 0 ? first : blank || !lines[i].text()->empty()) out.append(width);
    out.append(*lines[i].text());
  }
  return out;
}

Value truncate(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "truncate", {"length", "killwords", "end", "leeway"});
  static const Text kDots("..."), kBlank(" ");
  const Text& text = text_of(&of, "truncate");
  const Text& end = text_of(bound[2], "truncate", kDots);
  const int64_t length = whole_of(bound[0], "truncate", 255);
  const int64_t leeway = is_given(bound[3]) ? whole_of(bound[3], "truncate", 0) : 5;
  check(length >= end.length(), "truncate: a length of {} is less than that of the end, {}", length,
        end.length());
  check(leeway >= 0, "truncate: a leeway of {}", leeway);
  if (text.length() <= length + leeway) return of;
  Text kept = text.characters(0, length - end.length());
  if (!truth_of(bound[1])) kept = *split_from_right(kept, &kBlank, 1)[0].text();
  kept.append(end);
  return kept;
}

Value wordcount(const Value& of, const Arguments& a) {
  bind(a, "wordcount", {});
  int64_t count = 0;
  bool within = false;
  for (const Value& one : elements_of(to_text(of))) {
    const std::string& character = one.text()->bytes();
    const auto point = first_code_point(character);
    const bool of_word =
        character == "_" || (point && has_property(point->code, kAlphabetic | kDecimal | kDigit | kNumeric));
    count += of_word && !within;
    within = of_word;
  }
  return count;
}

Text quoted_for_url(const Value& value, bool of_query) {
  Text out;
  const Text text = to_text(value);
  Budget::spend(static_cast<int64_t>(text.size()));
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !of_query);
    if (plain)
      out.append(text, i, 1);
    else if (c == ' ' && of_query)
      out.append("+", text.origin_at(i));
    else
      out.append(fmt::format("%{:02X}", static_cast<unsigned char>(c)), text.origin_at(i));
  }
  return out;
}
Value urlencode(const Value& of, const Arguments& a) {
  bind(a, "urlencode", {});
  const bool has_pairs = of.dict() || of.sequence();
  if (!has_pairs) return quoted_for_url(of, false);
  Text out;
  const auto add = [&](const Value& name, const Value& value) {
    if (!out.empty()) out.append("&", kTemplate);
    out.append(quoted_for_url(name, true));
    out.append("=", kTemplate);
    out.append(quoted_for_url(value, true));
  };
  if (of.dict()) {
    for (const auto& [key, value] : *of.dict()) add(key.value(), value);
    return out;
  }
  for (const Value& one : elements_of(of)) {
    const auto pair = elements_of(one);
    check(pair.size() == 2, "urlencode expects pairs");
    add(pair[0], pair[1]);
  }
  return out;
}

Value or_default(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "default", {"default_value", "boolean"});
  const bool replaced = of.is_undefined() || (truth_of(bound[1]) && !of.is_true());
  if (!replaced) return of;
  return bound[0] ? *bound[0] : Value("");
}

Value trim(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "trim", {"chars"});
  return strip(to_text(of), {}, is_given(bound[0]) ? &text_of(bound[0], "trim") : nullptr);
}

Value replaced(const Value& of, const Arguments& a) {
  const auto bound = bind(a, "replace", {"old", "new", "count"}, 2);
  return replace(to_text(of), to_text(*bound[0]), to_text(*bound[1]),
                 is_given(bound[2]) ? whole_of(bound[2], "replace", -1) : -1);
}

Value format_filter(const Value& of, const Arguments& a) {
  check(a.positional.empty() || a.named.empty(), "format takes values with names, or without, not both");
  if (a.named.empty()) return formatted_by_percent(to_text(of), Value(Form::kTuple, a.positional));
  Dict named;
  for (const auto& [name, value] : a.named) named.emplace_back(Text(name), value);
  return formatted_by_percent(to_text(of), named);
}

template <auto kChange>
Value changed(const Value& of, const Arguments& a) {
  bind(a, "the filter", {});
  return kChange(to_text(of));
}
Text itself(Text text) { return text; }

}  // namespace

const FilterTable& text_filters() {
  static const FilterTable kFilters{
      {"capitalize", changed<capitalized>},
      {"center",
       [](const Value& v, const Arguments& a) -> Value {
         return centered(to_text(v), whole_of(bind(a, "center", {"width"})[0], "center", 80));
       }},
      {"d", or_default},
      {"default", or_default},
      {"format", format_filter},
      {"indent", indent},
      {"lower", changed<in_lower_case>},
      {"replace", replaced},
      {"safe", changed<itself>},
      {"string", changed<itself>},
      {"title", changed<titled_by_filter>},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", changed<in_upper_case>},
      {"urlencode", urlencode},
      {"wordcount", wordcount},
  };
  return kFilters;
}

}  // namespace tessera::jinja

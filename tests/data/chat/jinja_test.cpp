// Templates in Jinja against what transformers makes of them, and what is refused.
#include "data/chat/jinja.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/data/support.h"

namespace tessera::jinja {
namespace {

using nlohmann::ordered_json;

std::tm day(int year, int month, int day_of_month) {
  std::tm made{};
  made.tm_year = year - 1900;
  made.tm_mon = month - 1;
  made.tm_mday = day_of_month;
  return made;
}

Rendered render(const std::string& source, const Dict& variables = {}) {
  return Template(source, "t.jinja").render(variables, day(2026, 1, 31));
}
std::string text(const std::string& source, const Dict& variables = {}) {
  return render(source, variables).text.bytes();
}

TEST(Jinja, WritesWhatTransformersWrites) {
  const auto fixture = ordered_json::parse(std::ifstream(TESSERA_SOURCE_DIR "/tests/fixtures/jinja.json"));
  const Dict variables{{Text("messages"), value_of(fixture["messages"], kOtherData)},
                       {Text("tools"), Value()},
                       {Text("documents"), Value()},
                       {Text("add_generation_prompt"), false}};
  ASSERT_GT(fixture["templates"].size(), 10u);
  for (const auto& one : fixture["templates"]) {
    const Rendered made = render(one["template"], variables);
    EXPECT_EQ(made.text.bytes(), one["text"].get<std::string>()) << one["template"];
    ordered_json spans = ordered_json::array();
    for (const Span& span : made.generated) spans.push_back({span.first, span.last});
    EXPECT_EQ(spans, one["generated"]) << one["template"];
  }
}

// Of each byte: 't' the template, 'd' data, '0' message 0
std::string origins(const Text& text) {
  std::string made;
  for (size_t i = 0; i < text.size(); ++i) {
    const Origin origin = text.origin_at(i);
    made += origin == kTemplate ? 't' : origin == kOtherData ? 'd' : static_cast<char>('0' + origin);
  }
  return made;
}

TEST(Jinja, ATextKnowsWhoWroteEachByte) {
  const Dict variables{{Text("m"), Text("ab cd", 0)}, {Text("r"), Text("user", kOtherData)}};
  const auto of = [&](const char* source) { return origins(render(source, variables).text); };
  EXPECT_EQ(of("<{{ r }}>{{ m }}"), "tddddt00000");
  EXPECT_EQ(of("{{ '[' + m[1:3] ~ ']' }}"), "t00t");
  EXPECT_EQ(of("{{ m.split(' ')[1] }}{{ m | upper }}"), "0000000");
  EXPECT_EQ(of("{{ m.replace('b', 'xy') }}"), "0tt000");
  EXPECT_EQ(of("{{ m | tojson }}"), "t00000t");
  EXPECT_EQ(of("{{ [m, 'x'] | join('-') }}"), "00000tt");
  EXPECT_EQ(of("{{ m | trim }}{% set y %}<{{ m }}{% endset %}{{ y }}"), "00000t00000");
}

void expect_refused(const std::string& source, std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(source);
  expect_error([&] { text(source); }, parts);
}

TEST(Jinja, WhatIsNotSupportedIsRefusedByNameAndLine) {
  for (const auto& [source, what] : std::vector<std::pair<std::string, std::string>>{
           {"{% include 'a' %}", "include"},
           {"{% import 'a' as b %}", "import"},
           {"{% extends 'a' %}", "extends"},
           {"{% block a %}{% endblock %}", "block"},
           {"{% autoescape true %}{% endautoescape %}", "autoescape"},
           {"{% do a %}", "do"},
           {"{{ a | urlize }}", "the filter urlize is not supported"},
           {"{{ a | xmlattr }}", "the filter xmlattr is not supported"},
           {"{{ [a] | map('escape') | list }}", "the filter escape is not supported"},
           {"{{ a is escaped }}", "the test escaped is not supported"},
           {"{{ [a] | select('escaped') | list }}", "the test escaped is not supported"},
           {"{{ 'a'.encode() }}", "the method encode of a str is not supported"},
           {"{{ [1].append(2) }}", "the method append of a list is not supported"},
           {"{{ {}.update(a=2) }}", "the method update of a dict is not supported"},
           {"{{ (1).bit_length() }}", "the method bit_length of a int is not supported"},
           {"{{ 'a'.__class__ }}", "the attribute __class__ of a str is not supported"},
           {"{{ cycler(1, 2) }}", "the global cycler is not supported"},
           {"{{ [1] | map('string') }}", "a generator is not supported as a text"},
           {"{{ (-1) ** 0.5 }}", "complex: that is not supported"},
           {"{{ 'é' is string is string }}", "not supported"},
           {"{% set a %}{% generation %}{% endgeneration %}{% endset %}", "generation"}})
    expect_refused("x\n" + source, {"t.jinja:2:", what});
}

TEST(Jinja, WhatIsNoTemplateIsRefusedWithItsLine) {
  for (const char* source : {"{% if a %}",
                             "{% if a %}{% endfor %}",
                             "{{ a",
                             "{# a",
                             "{{ 'a }}",
                             "{{ a b }}",
                             "{{ (a }}",
                             "{{ a) }}",
                             "{% endif %}",
                             "{{ a. }}",
                             "{{ [1, }}",
                             "{% for in a %}{% endfor %}",
                             "{% set 1 = 2 %}",
                             "{{ a ? b }}",
                             "{% break %}",
                             "{{ 1__0 }}",
                             "{{ '\\ud800' }}",
                             "{% call 1 %}{% endcall %}",
                             "{% raw %}{% endif %}",
                             "{{ '\\xg' }}",
                             "{% %}",
                             "{{ }}",
                             "{{ {1} }}"})
    expect_refused(std::string("\n\n") + source, {"t.jinja:3:"});
  expect_refused(std::string(300, '(') + "{{" + std::string(300, '(') + "1" + std::string(300, ')') + "}}",
                 {"nested"});
}

TEST(Jinja, WhatPythonWouldRaiseIsAnError) {
  for (const auto& [source, what] : std::vector<std::pair<std::string, std::string>>{
           {"{{ a.b }}", "a is undefined"},
           {"{{ a + 'b' }}", "a is undefined"},
           {"{{ 'a' + 1 }}", "str"},
           {"{{ none + 'a' }}", "NoneType"},
           {"{{ a() }}", "undefined"},
           {"{{ 'a'.nothing() }}", "nothing is undefined"},
           {"{{ 1 // 0 }}", "zero"},
           {"{{ 'a' < 1 }}", "order"},
           {"{{ none | length }}", "NoneType"},
           {"{% for a in none %}{% endfor %}", "NoneType"},
           {"{% set a, b = [1] %}", "2 variables"},
           {"{{ 'a'.split('') }}", "empty"},
           {"{{ raise_exception('no system') }}", "no system"},
           {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "macro m"},
           {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep"},
           {"{{ range(1000000) }}", "range"},
           {"{{ [1] + (2,) }}", "list"},
           {"{{ (1,) < [1] }}", "order"},
           {"{{ {[1]: 2} }}", "unhashable"},
           {"{{ '%d' % 'a' }}", "%d"},
           {"{{ '%s' % (1, 2) }}", "too many"},
           {"{{ '%s %s' % (1,) }}", "too few"},
           {"{{ '{} {}'.format(1) }}", "format"},
           {"{{ '{:d}'.format('a') }}", "format"},
           {"{{ [1] | map('string') | length }}", "generator"},
           {"{{ {(1, 2): 3} | tojson }}", "tuple"},
           {"{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "macro m"},
           {"{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}", "caller"},
           {"{% for a, b in [(1, 2, 3)] %}{% endfor %}", "2 variables"},
           {"{% for a in [1] %}{{ loop(1) }}{% endfor %}", "recursive"},
           {"{{ 99999999999999999999 + 1 }}", "too large"},
           {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"},
           {"{{ 9223372036854775807 + 1 }}", "too large"}})
    expect_refused("x\n" + source, {"t.jinja:2:", what});
}

TEST(Jinja, IntegersOfAnySizeKeepTheirDigits) {
  const auto json = parse_json_exactly(
      R"({"a": 18446744073709551615, "b": -123456789012345678901234567890, "c": [9223372036854775807, 1e3, 2.50]})");
  const Dict variables{{"v", value_of(json, kOtherData)}};
  EXPECT_EQ(
      text("{{ v | tojson }}", variables),
      R"({"a": 18446744073709551615, "b": -123456789012345678901234567890, "c": [9223372036854775807, 1000.0, 2.5]})");
  EXPECT_EQ(text("{{ v.a }}{{ v.b }}{{ v.a == 18446744073709551615 }}{{ v.a > 1 > v.b }}{{ v.a is integer }}"
                 "{{ '99999999999999999999' | int }}{{ v.b | string | length }}",
                 variables),
            "18446744073709551615-123456789012345678901234567890TrueTrueTrue9999999999999999999931");
  EXPECT_EQ(text("{{ -v.a }}{{ v.b | abs }}{{ -9223372036854775808 }}", variables),
            "-18446744073709551615123456789012345678901234567890-9223372036854775808");
  expect_error([&] { text("{{ v.a - 1 }}", variables); }, {"t.jinja:1:", "64 bits", "not supported"});
}

TEST(Jinja, NoneAndEmptyListsAreThoseOfPython) {
  const Dict variables{{"tools", List{}}, {"m", Dict{{"tool_calls", Value()}}}};
  EXPECT_EQ(text("{{ tools is not none }}{{ tools is defined }}{% if tools %}x{% endif %}{{ tools | length "
                 "}}{{ tools }}"
                 "{% for t in tools %}x{% else %}e{% endfor %}{{ m.tool_calls is none }}{{ m.tool_calls is "
                 "defined }}"
                 "{% if m.tool_calls %}x{% endif %}{{ 'tool_calls' in m }}{{ m.tool_calls or 'o' }}",
                 variables),
            "TrueTrue0[]eTrueTrueTrueo");
  expect_error([&] { text("{{ m.tool_calls | length }}", variables); }, {"NoneType"});
}

TEST(Jinja, ATemplateSaysWhichFieldsItNames) {
  const Template made("{{ m.tool_calls }}{{ m['weight'] }}{% if 'name' in m %}{% endif %}", "t");
  EXPECT_TRUE(made.names("tool_calls") && made.names("weight") && made.names("name"));
  EXPECT_FALSE(made.names("tools") || made.names("m"));
  EXPECT_TRUE(made.reads("m"));
  EXPECT_FALSE(made.reads("name"));
}

}  // namespace
}  // namespace tessera::jinja

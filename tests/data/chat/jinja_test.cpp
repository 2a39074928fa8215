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
           {"{% raw %}{% endraw %}", "raw"},
           {"{% with a = 1 %}{% endwith %}", "with"},
           {"{% for a in b recursive %}{% endfor %}", "recursive"},
           {"{{ a | urlize }}", "urlize"},
           {"{{ a is escaped }}", "escaped"},
           {"{{ 2 ** 3 }}", "**"},
           {"{{ f(*a) }}", "*"},
           {"{% for a in b %}{% macro m() %}{% endmacro %}{% endfor %}", "macro"},
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
                             "{{ 99999999999999999999 }}",
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
           {"{{ 'é' | upper }}", "ASCII"},
           {"{{ range(1000000) }}", "range"},
           {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"},
           {"{{ 9223372036854775807 + 1 }}", "too large"}})
    expect_refused("x\n" + source, {"t.jinja:2:", what});
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

// Templates that a stranger wrote to crash the program, to keep it busy or to take its memory
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "data/chat/jinja.h"
#include "tests/data/support.h"

namespace tessera::jinja {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// {% for %} over `times` numbers, which changes ns.x, of the value `first`; then `last`
std::string loop(const std::string& first, const std::string& change, const std::string& last,
                 int times = 99'999) {
  return "{% set ns = namespace(x=" + first + ") %}{% for i in range(" + std::to_string(times) + ") %}\n" +
         change + "{% endfor %}" + last;
}

struct Attack {
  std::string source, limit;  // a word of the refusal; none: it may end well
};
const std::string kDouble = "{% set ns.x = [ns.x, ns.x] %}";

std::vector<Attack> deep_attacks() {
  const std::string kGrow = "{% set ns.x = [ns.x] %}";
  return {
      // deep values
      {loop("[1]", kGrow, "{{ ns.x }}"), "nested"},
      {loop("[1]", kGrow, "{{ ns.x | tojson }}"), "nested"},
      {loop("[1]", kGrow, ""), "nested"},
      {loop("1", "{% set ns.x = {'a': ns.x} %}", ""), "nested"},
      {loop("1", "{% set ns.x = (ns.x,) %}", "{{ ns.x == ns.x }}"), "nested"},
      {loop("1", "{% set ns.x = {'a': ns.x}.items %}", ""), "nested"},
      {loop("1", "{% set ns.x = dict(a=ns.x) %}", ""), "nested"},
      {loop("1", "{% set ns.x = [ns.x] | map('string') %}", "{{ ns.x | list }}"), ""},
      {loop("1", "{% set ns.x = [ns.x] | batch(1) %}", ""), "nested"},
      {loop("1", "{% set ns.x = namespace(p=ns.x) %}", ""), ""},
      {loop("1", "{% for y in [ns.x] %}{% set ns.x = loop %}{% endfor %}", ""), ""},
      {loop("1", "{% for y in [ns.x] %}{% set ns.x = loop.cycle %}{% endfor %}", ""), ""},
      // chains of operators, fields and filters; nested source
      {"{{ 1" + repeated("+1", 30'000) + " }}", "limit"},
      {"{{ x" + repeated(".y", 50'000) + " }}", "limit"},
      {"{{ x" + repeated("[0]", 50'000) + " }}", "limit"},
      {"{{ x" + repeated("()", 50'000) + " }}", "limit"},
      {"{{ 'x'" + repeated("|upper", 40'000) + " }}", "limit"},
      {"{{ 1" + repeated(" if 1", 40'000) + " }}", "limit"},
      {"{{ 1" + repeated(" ~ 1", 40'000) + repeated(" and 1", 40'000) + " }}", "limit"},
      {"{{ " + repeated("not ", 40'000) + " 1 }}", "nested"},
      {"{{ " + repeated("-", 40'000) + " 1 }}", "nested"},
      {"{{ " + repeated("[", 40'000) + repeated("]", 40'000) + " }}", "nested"},
      {"{{ " + repeated("(1" + repeated("+1", 190) + "+", 60) + "1" +
           repeated(")" + repeated("+1", 190), 60) + " }}",
       "limit"},
      {repeated("{% if 1 %}", 40'000), "nested"},
      {"{% filter upper" + repeated("|upper", 40'000) + " %}{% endfilter %}", "limit"},
      {"{% macro m(a) %}{{ m(a) }}{% endmacro %}{{ m(1) }}", "deep"},
      {"{% macro m(a) %}" + repeated("{% if 1 %}", 90) + "{{ m([[[a]]][0][0][0]) }}" +
           repeated("{% endif %}", 90) + "{% endmacro %}{{ m(1) }}",
       "deep"},
      {"{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deep"},
  };
}

std::vector<Attack> busy_attacks() {
  const std::string kTen = "{% set s = 'x' * 10000000 %}{% for i in range(99999) %}{% if ";
  return {
      // one value many times
      {loop("[1]", kDouble, "{{ ns.x }}", 60), "limit"},
      {loop("[1]", kDouble, "{{ ns.x | tojson }}", 60), "limit"},
      {loop("[1]", kDouble, "{{ ns.x == [ns.x, ns.x][0] }}{{ [ns.x] == [[ns.x[0], ns.x[1]]] }}", 60), ""},
      {"{% set a = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set a.x = [a.x, a.x] %}{% set a.y = "
       "[a.y, a.y] %}"
       "{% endfor %}{{ a.x == a.y }}",
       "limit"},
      {"{% set a = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set a.x = [a.x, a.x] %}{% set a.y = "
       "[a.y, a.y] %}"
       "{% endfor %}{{ a.x < a.y }}",
       "limit"},
      {loop("[1]", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{{ ns.x | string | length }}", 60), "limit"},
      {loop("[1]", kDouble, "{{ [ns.x, ns.x] | unique | list | length }}", 60), ""},
      {loop("[1]", kDouble, "", 60), ""},
      // large texts, many times
      {kTen + "'y' in s %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s.find('y') %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s | upper %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s | length %}{% endif %}{% endfor %}", ""},
      {kTen + "s.count('y') %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s == s ~ '' %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s[::-1] %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s.split('y') %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s.splitlines() %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s.isalpha() %}{% endif %}{% endfor %}", "limit"},
      {kTen + "(s ~ 'é')[5000000] %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s | tojson %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s.strip('y') %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s.strip('x') %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s is lower %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s | wordcount %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s % () %}{% endif %}{% endfor %}", "limit"},
      {kTen + "s.format() %}{% endif %}{% endfor %}", "limit"},
      {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "limit"},
      {"{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}", "limit"},
      {"{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}", "limit"},
      {"{% for i in range(99999) %}{{ 'x' in range(99999) }}{% endfor %}", "limit"},
      {"{% for i in range(99999) %}{{ (range(99999) | list)[::-1] | length }}{% endfor %}", "limit"},
      {"{{ range(99999) | map('default') | unique | list | length }}", "limit"},
      {"{% set r = range(99999) | list %}{% for i in r %}{{ (r + r) | length }}{% endfor %}", "limit"},
  };
}

std::vector<Attack> greedy_attacks() {
  return {
      {loop("'x'", "{% set ns.x = ns.x + ns.x %}", "", 60), "limit"},
      {loop("'x'", "{% set ns.x = ns.x ~ ns.x %}", "", 60), "limit"},
      {loop("[1]", "{% set ns.x = ns.x + ns.x %}", "", 60), "limit"},
      {loop("[1]", "{% set ns.x = ns.x * 2 %}", "", 60), "limit"},
      {"{% set x = ('x' * 100000) | replace('x', 'y' * 100000) %}", "limit"},
      {"{% set x = ('x' * 100000).replace('', 'y' * 100000) %}", "limit"},
      {"{% set x = range(99999) | join('x' * 1000000) %}", "limit"},
      {"{% set x = ('x' * 1000000).join('y' * 100000) %}", "limit"},
      {"{% set x = ('x\n' * 100000) | indent(100000) %}", "limit"},
      {"{% set x = (range(99999) | list) | tojson(indent=1000000) %}", "limit"},
      {"{% set x = range(99999) | map('center', 100000) | list %}", "limit"},
      {"{% set x = 'x'.center(2000000000) %}", "limit"},
      {"{% set x = 'x'.ljust(9000000000000000000) %}", "limit"},
      {"{% set x = 'x'.zfill(2000000000) %}", "limit"},
      {"{% set x = '\t'.expandtabs(2000000000) %}", "limit"},
      {"{% set x = '%2000000000d' % 1 %}", "limit"},
      {"{% set x = '%.2000000000f' % 1 %}", "at most"},
      {"{% set x = '{:2000000000}'.format(1) %}", "limit"},
      {"{% set x = '{:é>200000000}'.format(1) %}", "limit"},
      {"{% set x = 'x' * 9000000000000000000 %}", "limit"},
      {"{% set x = [1] * 9000000000000000000 %}", "limit"},
      {"{% set x = '' * 9000000000000000000 %}{% set x = [] * 9000000000000000000 %}", ""},
      {"{% set x = 'x' | batch(9000000000000000000, 'y') | list %}", "limit"},
      {"{% set x = 'x' | slice(9000000000000000000) | list %}", "limit"},
      {"{% set x = 9 ** 9000000000000000000 %}{{ x }}", "64 bits"},
      {"{% set x = ('x' * 10000000) | list %}", "limit"},
      {"{% set x = ('x ' * 10000000).split() %}", "limit"},
      {"{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", "limit"},
      {"{% macro m() %}{{ caller() }}{% endmacro %}{% set x %}{% for i in range(99999) %}{{ 'x' * 10000 }}{% "
       "endfor %}{% endset %}",
       "limit"},
      {"{% for i in range(99999) %}{% set x = namespace(a=range(1000) | list) %}{% endfor %}", "limit"},
      {"{% for i in 'é' * 10000000 %}{% endfor %}", "limit"},
  };
}

std::vector<Attack> attacks() {
  std::vector<Attack> all = deep_attacks();
  for (const auto& some : {busy_attacks(), greedy_attacks()}) all.insert(all.end(), some.begin(), some.end());
  return all;
}

// Seconds and bytes at most: twice what a busy machine needs
constexpr double kSeconds = 10;
constexpr rlim_t kMemory = rlim_t{1} << 30;

TEST(JinjaLimits, AStrangersTemplateEndsSoonWithAnErrorThatNamesTheLimit) {
  for (const Attack& attack : attacks()) {
    const std::string shown = attack.source.substr(0, 150);
    const auto start = std::chrono::steady_clock::now();
    std::string error;
    try {
      const Template made(attack.source, "t.jinja");
      made.render({}, std::tm{});
    } catch (const Error& failed) {
      error = failed.what();
    }
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), kSeconds)
        << shown;
    if (attack.limit.empty()) {
      EXPECT_EQ(error.find("bad_alloc"), std::string::npos) << shown;
    } else {
      EXPECT_NE(error.find(attack.limit), std::string::npos) << shown << "\n" << error;
      EXPECT_EQ(error.find("t.jinja:"), 0u) << shown << "\n" << error;
    }
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  EXPECT_LT(static_cast<rlim_t>(used.ru_maxrss) << 10, kMemory);
}

// A rendering of `turns` messages, in seconds
double seconds_of(const Template& made, int turns) {
  List messages;
  for (int i = 0; i < turns; ++i)
    messages.emplace_back(
        Dict{{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", "Hello, how are you?"}});
  const Dict variables{{"messages", Value(std::move(messages))},
                       {"add_generation_prompt", false},
                       {"bos_token", "<s>"},
                       {"eos_token", "</s>"},
                       {"tools", Value()}};
  const auto start = std::chrono::steady_clock::now();
  EXPECT_GT(made.render(variables, std::tm{}).text.size(), static_cast<size_t>(turns) * 19);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(JinjaLimits, ARenderingTakesTimeInProportionToTheTurns) {
  for (const char* source :
       {"{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{{ loop.index }}{% endfor %}",
        "{%- set ns = namespace(last=0, text='') -%}{%- for m in messages[::-1] -%}{%- set ns.last = "
        "loop.index -%}{%- endfor -%}"
        "{% for i in range(messages | length) %}{{ messages[i].role + messages[i].content }}{{ loop.last "
        "}}{% endfor %}",
        "{% set rest = messages[1:] %}{{ messages[0].content }}{% for m in rest %}{% if m.role == 'user' "
        "%}{{ m.content }}"
        "{% else %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}",
        "{% macro show(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ show(m) }}{{ "
        "messages[loop.index0].role }}{% endfor %}"}) {
    const Template made(source, "t.jinja");
    const double small = seconds_of(made, 3'000), large = seconds_of(made, 60'000);
    EXPECT_LT(large, std::max(60 * small, 2.0)) << source;  // 20 times the turns
  }
}

}  // namespace
}  // namespace tessera::jinja

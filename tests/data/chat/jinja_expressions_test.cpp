// Expressions and templates drawn at random: what Tessera makes of them is what jinja2 makes of them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/chat/jinja.h"
#include "tests/data/support.h"
#include "tests/python.h"

namespace tessera::jinja {
namespace {

using nlohmann::ordered_json;

// What jinja2 computes and Tessera refuses by its name: complex numbers, arithmetic beyond 64 bits
bool is_named(const std::string& error) { return error.find("is not supported") != std::string::npos; }

struct Compared {
  int same = 0, refused = 0, errors = 0, errors_only_there = 0;
};
Compared compare_all(const std::string& json) {
  const ordered_json file = parse_json_exactly(json);
  Dict variables;
  for (const auto& [name, value] : file["variables"].items())
    variables.emplace_back(Text(name), value_of(value, kOtherData));
  Compared compared;
  for (const auto& one : file["templates"]) {
    const auto source = one["template"].get<std::string>();
    std::string made, error;
    try {
      made = Template(source, "t").render(variables, std::tm{}).text.bytes();
    } catch (const Error& failed) {
      error = failed.what();
    }
    if (one.contains("error")) {
      ++(error.empty() ? compared.errors_only_there : compared.errors);
    } else if (!error.empty()) {
      ++compared.refused;
      EXPECT_TRUE(is_named(error)) << source << "\njinja2 makes: " << one["text"] << "\nhere: " << error;
    } else {
      ++compared.same;
      EXPECT_EQ(made, one["text"].get<std::string>()) << source;
    }
  }
  return compared;
}

TEST(JinjaExpressions, AreComputedAsByJinja2) {
  const Compared compared =
      compare_all(read_file(TESSERA_SOURCE_DIR "/tests/fixtures/jinja_expressions.json"));
  EXPECT_GE(compared.same, 800);
  EXPECT_LE(compared.refused, 5);
}

class JinjaExpressionsInPython : public InTempFolder {};

TEST_F(JinjaExpressionsInPython, ThousandsAreComputedAsByJinja2) {
  if (const auto missing = testing::missing_in_python("jinja2", folder_); !missing.empty())
    GTEST_SKIP() << missing;
  for (const char* seed : {"1", "2"}) {
    const auto ran = testing::run_process(
        testing::python_program(),
        {TESSERA_SOURCE_DIR "/tests/data/chat/make_jinja_expressions.py", "2000", seed}, {.folder = folder_});
    ASSERT_EQ(ran.status, 0) << ran.error;
    const Compared compared = compare_all(ran.out);
    EXPECT_GE(compared.same, 1700);
    EXPECT_LE(compared.refused, 10);
    // jinja2 takes "if" for an argument in {{ x is string if y }}; here it begins the condition.
    EXPECT_LE(compared.errors_only_there, 20);
    EXPECT_GE(compared.errors, 100);
  }
}

}  // namespace
}  // namespace tessera::jinja

// JSON that anyone may have written: limits, places of faults, ranges of numbers.
#include "kernels/base/json_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"

namespace tessera {
namespace {

std::string error_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "f.json", limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string nested(size_t depth, const std::string& open = "[", const std::string& close = "]") {
  std::string text;
  for (size_t i = 0; i < depth; ++i) text += open;
  text += open == "[" ? "" : "1";
  for (size_t i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(JsonText, ReadsWhatIsJson) {
  EXPECT_EQ(parse_json(R"( {"a": [1, -2.5, "x\u0041", true, null]} )", "f").dump(),
            R"({"a":[1,-2.5,"xA",true,null]})");
  EXPECT_EQ(parse_json(nested(64), "f").dump(), nested(64));
}

TEST(JsonText, DepthIsBounded) {
  const auto refused = [](const std::string& text, std::string_view place, const JsonLimits& limits = {}) {
    const std::string found = error_of(text, limits);
    EXPECT_TRUE(found.starts_with(place)) << found;
    for (const std::string& word : {std::string("nested"), fmt::format(" {} ", limits.depth)})
      EXPECT_NE(found.find(word), std::string::npos) << found;
  };
  refused(nested(65), "f.json:1:65: ");
  for (const size_t depth : {200'000u, 5'000'000u}) {
    refused(nested(depth), "f.json:1:65: ");
    refused(nested(depth, "{\"k\":", "}"), "f.json:1:321: ");
    refused(std::string(depth, '['), "f.json:1:65: ");
  }
  refused("[[1], [[2]]]", "f.json:1:8: ", {.depth = 2});
}

TEST(JsonText, SizeIsBounded) {
  const std::string found = error_of("[1, 2]", {.bytes = 5});
  EXPECT_TRUE(found.starts_with("f.json: 6 bytes") && found.ends_with(" 5")) << found;
  EXPECT_EQ(error_of("[1, 2]", {.bytes = 6}), "no error");
}

TEST(JsonText, FaultsHaveAPlace) {
  EXPECT_TRUE(error_of("{\n \"a\": nope}").starts_with("f.json:2:8: not JSON"))
      << error_of("{\n \"a\": nope}");
  EXPECT_TRUE(error_of("").starts_with("f.json:1:1: not JSON")) << error_of("");
  EXPECT_TRUE(error_of("{} {}").starts_with("f.json:1:4: not JSON")) << error_of("{} {}");
  EXPECT_TRUE(error_of("\"\xff\"").starts_with("f.json:1:2: not JSON")) << error_of("\"\xff\"");
  EXPECT_TRUE(error_of("[\n1,\n1e999 ]").starts_with("f.json:3:")) << error_of("[\n1,\n1e999 ]");
  EXPECT_TRUE(error_of("nope", {.first_line = 12}).starts_with("f.json:12:2: not JSON"));
  using namespace std::string_literals;
  EXPECT_EQ(error_of("{}\n\0"s), "f.json:2:1: not JSON: a zero byte");
  EXPECT_EQ(error_of("{\"a\": 1}\0 nope"s), "f.json:1:9: not JSON: a zero byte");
  EXPECT_LT(error_of("[" + std::string(1'000'000, '1') + "x").size(),
            500u);  // the token is not printed whole
}

// What was handed over, item by item, and what was kept
std::string parts_of(const std::string& text, std::vector<JsonPart> parts) {
  std::string items;
  for (JsonPart& part : parts)
    part.on_item = [&items, path = part.path](const std::string& key, const nlohmann::json& item) {
      items += fmt::format("{}[{}]={} ", path, key, item.dump());
      return key != "twice";
    };
  const std::string kept = parse_json(text, "f.json", {}, parts).dump();
  return items + kept;
}

TEST(JsonText, LargePartsAreHandedOver) {
  const std::string text =
      R"({"v": [1], "m": {"v": {"a": 1, "b": [2, ["x"]], "c": {"v": {"a": 2}}}, "l": [["p", "q"], ["r"], "s", ["t", "u", 3], [], {"l": [4]}]}, "z": 5})";
  EXPECT_EQ(parts_of(text, {{.path = "m.v"}, {.path = "m.l", .is_list = true}}),
            "m.v[a]=1 m.v[b]=[2,[\"x\"]] m.v[c]={\"v\":{\"a\":2}} "
            "m.l[]=[\"p\",\"q\"] m.l[]=[\"r\"] m.l[]=\"s\" m.l[]=[\"t\",\"u\",3] m.l[]=[] m.l[]={\"l\":[4]} "
            R"({"m":{"l":[],"v":{}},"v":[1],"z":5})");
  // Of the other kind, or elsewhere: kept
  const std::string whole = nlohmann::json::parse(text).dump();
  EXPECT_EQ(parts_of(text, {{.path = "m.v", .is_list = true}, {.path = "m.l"}, {.path = "z"}, {.path = "a"}}),
            whole);
  EXPECT_EQ(parts_of("[[1, 2], [3]]", {{.path = "", .is_list = true}}), "[]=[1,2] []=[3] []");
  EXPECT_EQ(parts_of(R"({"": {"": 1}})", {{.path = ""}}), R"([]={"":1} {})");
  for (const std::string broken :
       {"{\"m\": {\"v\": {\"a\": 1,\n\"twice\": 2}}}", "{\"m\": {\"v\": {\"a\":\nnope}}}"})
    EXPECT_THROW(parts_of(broken, {{.path = "m.v"}}), Error);
  try {
    parts_of("{\"m\": {\"v\": {\"a\": 1,\n \"twice\":\n 2}}}", {{.path = "m.v"}});
  } catch (const Error& error) {
    EXPECT_TRUE(std::string_view(error.what()).starts_with("f.json:2:8: the key \"twice\" ")) << error.what();
  }
}

TEST(JsonText, AKeyIsGivenOnce) {
  const std::string error = error_of("{\"a\": {\"a\": 1},\n\"\\u0061\": 2}");
  EXPECT_TRUE(error.starts_with("f.json:2:8: the key \"a\" ")) << error;
  EXPECT_EQ(error_of(R"([{"a": 1}, {"a": {"b": 1}, "b": 2}])"), "no error");
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 2})", "f", {.repeated_keys = true}).dump(), R"({"a":2})");
}

TEST(JsonText, NumbersHaveARange) {
  const auto found = [](const std::string& value) {
    try {
      return fmt::format("{}", whole_number(parse_json("{\"n\": " + value + "}", "f"), "n", "f", 2, 10));
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(found("2"), "2");
  EXPECT_EQ(found("10"), "10");
  for (const char* wrong : {"1", "11", "-3", "2.5", "3.0", "1e+30", "\"3\"", "null", "true", "[3]",
                            "18446744073709551615", "9223372036854775808", "-9223372036854775808"})
    for (const std::string& words : {std::string("f: \"n\" "), std::string("whole"), std::string(" 2 "),
                                     std::string(" 10,"), fmt::format("found {}", wrong)})
      EXPECT_NE(found(wrong).find(words), std::string::npos) << found(wrong);
  EXPECT_THROW(whole_number(parse_json("{}", "f"), "n", "f"), Error);
  EXPECT_THROW(whole_number(parse_json("[]", "f"), "n", "f"), Error);
  EXPECT_THROW(text_value(parse_json("{\"n\": 1}", "f"), "n", "f"), Error);
  EXPECT_EQ(text_value(parse_json("{\"n\": \"x\"}", "f"), "n", "f"), "x");
}

}  // namespace
}  // namespace tessera

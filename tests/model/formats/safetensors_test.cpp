// The safetensors reader against headers that anyone may have written.
#include "model/formats/safetensors.h"

#include "tests/data/support.h"

namespace tessera::testing {
namespace {

struct SafetensorsHeader : InTempFolder {
  std::filesystem::path write_file(const std::string& header, size_t data_bytes) const {
    return write("x.safetensors", little_endian(header.size(), 8) + header + std::string(data_bytes, '\x01'));
  }
  void refused(const std::string& header, size_t data_bytes,
               std::initializer_list<std::string_view> words) const {
    const std::filesystem::path path = write_file(header, data_bytes);
    expect_error([&] { SafetensorsReader reader(path); }, words);
    expect_error([&] { SafetensorsReader reader(path); }, {"x.safetensors"});
  }
  // A tensor "a" of two floats with one thing changed.
  static std::string tensor(const std::string& dtype = "\"F32\"", const std::string& shape = "[2]",
                            const std::string& offsets = "[0,8]") {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  }
};

TEST_F(SafetensorsHeader, ReadsWhatTheFormatAllows) {
  // Not in the order of their bytes, a tensor without elements, a scalar, spaces behind, dtypes that nobody
  // reads.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[1,3],"data_offsets":[4,28]},)"
      R"("none":{"dtype":"F64","shape":[0,7],"data_offsets":[28,28]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )";
  const SafetensorsReader file(write_file(header, 28));
  EXPECT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.entries().at("b").shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(file.entries().at("none").bytes.size(), 0u);
  std::vector<float> one(1), three(3);
  file.read("a", {}, one);
  expect_error([&] { file.read("b", {1, 3}, three); }, {"tensor b has dtype I64"});
  EXPECT_TRUE(SafetensorsReader(write_file("{}", 0)).entries().empty());
}

TEST_F(SafetensorsHeader, HasTheTextsThatWereWritten) {
  const std::filesystem::path path = write("texts.safetensors", "");
  const Metadata texts = {{"about", "two \"lines\"\nof text"}, {"empty", ""}};
  SafetensorsWriter writer(path, {{"a", {2}}}, Values::kAny, texts);
  writer.write(std::vector<float>{1, NAN});
  writer.commit();
  Metadata expected = texts;
  expected["format"] = "pt";
  EXPECT_EQ(SafetensorsReader(path).metadata(), expected);
  EXPECT_EQ(SafetensorsReader(write_file(R"({"__metadata__":{"a":5,"b":"c"}})", 0)).metadata(),
            (Metadata{{"b", "c"}}));
}

TEST_F(SafetensorsHeader, TheHeadersLengthHasBounds) {
  const auto with_length = [&](const std::string& length, const std::string& rest) {
    const std::filesystem::path path = write("x.safetensors", length + rest);
    return [path] { SafetensorsReader reader(path); };
  };
  expect_error(with_length("{}", ""), {"only 2 bytes"});
  expect_error(with_length(little_endian(3, 8), "{}"), {"3 bytes", "has 10"});
  expect_error(with_length(little_endian(~0ull, 8), "{}"), {"18446744073709551615 bytes"});
  const std::filesystem::path large = write("x.safetensors", little_endian(100'000'001, 8) + "{}");
  std::filesystem::resize_file(large, 100'000'009);  // sparse
  expect_error([&] { SafetensorsReader reader(large); }, {"100000001 bytes", " 100000000"});
}

TEST_F(SafetensorsHeader, TheHeaderIsJsonOfTheWantedKind) {
  refused(" {}", 0, {"begin with \"{\""});
  refused("[]", 0, {"begin with \"{\""});
  refused("{", 0, {"not JSON"});
  refused("{} x", 0, {"not JSON"});
  refused("{\"a\":" + std::string(200'000, '['), 0, {"nested", "64"});
  refused(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
          R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
          4, {"key \"a\"", "twice"});
  refused(R"({"a":{"dtype":"F32","dtype":"F16","shape":[],"data_offsets":[0,4]}})", 4,
          {"key \"dtype\"", "twice"});
  refused(R"({"__metadata__":5})", 0, {"__metadata__", "object", "found 5"});
  refused(R"({"a":5})", 0, {"tensor a: ", "object", "found 5"});
  refused(R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4, {"tensor a ", "no \"dtype\""});
  refused(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, {"tensor a ", "\"shape\""});
  refused(R"({"a":{"dtype":"F32","shape":[]}})", 4, {"tensor a ", "\"data_offsets\""});
  refused(tensor("\"F33\""), 8, {"tensor a ", "unknown", "\"F33\""});
  refused(tensor("7"), 8, {"\"dtype\"", "text", "found 7"});
}

TEST_F(SafetensorsHeader, ShapesAndOffsetsAreWholeNumbers) {
  EXPECT_NO_THROW(SafetensorsReader(write_file(tensor(), 8)));
  for (const char* number :
       {"1e30", "-1", "1.5", "2.0", "\"2\"", "null", "[2]", "9223372036854775808", "1e300"}) {
    refused(tensor("\"F32\"", "[" + std::string(number) + "]"), 8, {"tensor a: \"shape\"", "whole"});
    refused(tensor("\"F32\"", "[2]", "[0," + std::string(number) + "]"), 8,
            {"tensor a: \"data_offsets\"", "whole"});
    refused(tensor("\"F32\"", "[2]", "[" + std::string(number) + ",8]"), 8,
            {"tensor a: \"data_offsets\"", "whole"});
  }
  for (const char* offsets : {"[]", "[0]", "[0,8,8]", "{}", "8", "null"})
    refused(tensor("\"F32\"", "[2]", offsets), 8, {"\"data_offsets\"", "two"});
  refused(tensor("\"F32\"", "[2]", "[8,0]"), 8, {"byte 8", "at 0"});
  refused(tensor("\"F32\"", "2"), 8, {"list \"shape\""});
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775807,3]", "[9223372036854775807]"})
    refused(tensor("\"F32\"", shape), 8, {"2^64 bytes"});
}

// Each number of a shape was once read at the cost of all.
TEST_F(SafetensorsHeader, AShapeOfAMillionNumbersIsRefusedAtOnce) {
  std::string shape = "[1";
  for (int i = 0; i < 1'000'000; ++i) shape += ",1";
  refused(tensor("\"F32\"", shape + "]"), 8, {"a shape of 1000001 numbers", "at most 16"});
}

TEST_F(SafetensorsHeader, HalvesThatAreNotFiniteAreNamed) {
  const std::string header = R"({"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}})";
  for (const auto& [bits, text] : {std::pair(0x7C00, "is inf"), std::pair(0xFC00, "is -inf"),
                                   std::pair(0x7E01, "is nan"), std::pair(0xFC01, "is nan")}) {
    const auto path =
        write("x.safetensors", little_endian(header.size(), 8) + header + little_endian(0x7BFF, 2) +
                                   little_endian(0, 2) + little_endian(static_cast<uint64_t>(bits), 2) +
                                   little_endian(0, 2));
    const SafetensorsReader file(path);
    std::vector<float> values(4);
    expect_error(
        [&] {
          file.read("a", {2, 2}, values, Values::kFinite);
        },
        {"x.safetensors: tensor a", "[1, 0]", text});
    EXPECT_NO_THROW(file.read("a", {2, 2}, values));
  }
}

TEST_F(SafetensorsHeader, TensorsFillTheFile) {
  refused(tensor("\"F32\"", "[3]"), 8, {"tensor a of F32 [3]", "12 bytes", "[0, 8]"});
  refused(tensor("\"F16\""), 8, {"tensor a of F16 [2]", "4 bytes"});
  refused(tensor(), 7, {"truncated", "tensor a ", "byte 8", "7"});
  refused(tensor("\"F32\"", "[2]", "[9223372036854775799,9223372036854775807]"), 8, {"truncated"});
  refused(tensor(), 9, {"last 1 bytes"});
  refused("{}", 3, {"last 3 bytes"});
  const auto two = [](const std::string& second) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
           R"("b":{"dtype":"F32","shape":[2],"data_offsets":)" +
           second + "}}";
  };
  EXPECT_NO_THROW(SafetensorsReader(write_file(two("[8,16]"), 16)));
  refused(two("[12,20]"), 20, {"bytes 8 to 12", "tensor b"});
  refused(two("[4,12]"), 12, {"tensor b begins at byte 4", "at 8"});
  refused(two("[0,8]"), 8, {"tensor b begins at byte 0", "at 8"});
  refused(R"({"a\u001b[2J\n":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
          {"tensor \"a\\u001b[2J\\n\" of F32"});
}

}  // namespace
}  // namespace tessera::testing

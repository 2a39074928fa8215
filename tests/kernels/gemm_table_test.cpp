// Tables of algorithms: what is written is read, and what is damaged is refused at its line.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/gemm/table.h"
#include "tests/data/support.h"
#include "tests/gemm_library.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

GemmTable some_table() {
  GemmTable table{.platform = {.device = "NVIDIA H100 80GB HBM3", .cublaslt = 130100, .cudart = 13000},
                  .choices = {}};
  GemmKey plain = product(65536, 2304, 768);
  table.choices[plain] = {
      .algorithm = {.id = 66, .tile = 24, .stages = 36}, .ms = 0.28931, .first_ms = 0.314};
  GemmKey fused = plain;
  fused.epilogue = GemmEpilogue::kActivateBias;
  table.choices[fused] = {.algorithm = algorithm(7), .ms = 0.5, .first_ms = 0.5};
  // dweight += dy^T x, with k split and padded rows at odd addresses
  GemmKey gradient{.m = 33,
                   .n = 50,
                   .k = 64,
                   .a = {DType::kBF16, true, 40, 0, 2},
                   .b = {DType::kF32, false, 50, 3200, 16},
                   .d = {DType::kF32, false, 64, 4000, 4},
                   .batch = 3,
                   .epilogue = GemmEpilogue::kNone,
                   .adds = true,
                   .summed = 20};
  table.choices[gradient] = {.algorithm = {1, 2, 3, 6, 2, 1, 4, 5, 9}, .ms = 0.125, .first_ms = 0.25};
  return table;
}

std::string refusal(const std::string& text) {
  try {
    parse_gemm_table(text, "t.jsonl");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// The text with the first `from` changed to `to`
std::string changed(const std::string& from, const std::string& to) {
  std::string text = text_of(some_table());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in\n" << text;
  return text.replace(at, from.size(), to);
}

using GemmTableFile = InTempFolder;

TEST_F(GemmTableFile, WhatIsWrittenIsRead) {
  const GemmTable table = some_table();
  const std::string text = text_of(table);
  EXPECT_EQ(std::ranges::count(text, '\n'), 4);
  EXPECT_EQ(read_gemm_table(write("a.jsonl", text)), table);
  EXPECT_EQ(text_of(read_gemm_table(folder_ / "a.jsonl")), text);
}

TEST_F(GemmTableFile, EveryEpilogueIsReadWithItsActivation) {
  GemmTable table = some_table();
  for (const GemmEpilogue epilogue : kGemmEpilogues)
    for (const Activation activation : kActivations) {
      GemmKey key = product(64, 128, 256);
      key.epilogue = epilogue;
      if (has_aux(epilogue)) key.activation = activation;
      table.choices[key] = {.algorithm = algorithm(1)};
    }
  EXPECT_EQ(table.choices.size(), 3 + 2 + 3 * kActivations.size());
  EXPECT_EQ(parse_gemm_table(text_of(table), "t.jsonl"), table);
}

TEST_F(GemmTableFile, UsualValuesAreLeftOut) {
  GemmTable table = some_table();
  std::erase_if(table.choices, [](const auto& choice) { return choice.first.k != 768; });
  EXPECT_EQ(
      text_of(table),
      R"({"file":"Tessera's matrix products","version":1,"device":"NVIDIA H100 80GB HBM3","cublaslt":130100,"cudart":13000})"
      "\n"
      R"({"m":65536,"n":2304,"k":768,"a":{"dtype":"bf16"},"b":{"dtype":"bf16","transposed":true},"d":{"dtype":"bf16"},)"
      R"("algorithm":{"id":66,"tile":24,"stages":36,"split_k":1,"reduction":0,"swizzle":0,"custom":0,"inner_shape":0,)"
      R"("cluster_shape":0},"ms":0.28931,"first_ms":0.314})"
      "\n"
      R"({"m":65536,"n":2304,"k":768,"a":{"dtype":"bf16"},"b":{"dtype":"bf16","transposed":true},"d":{"dtype":"bf16"},)"
      R"("epilogue":"gelu_aux_bias","algorithm":{"id":7,"tile":27,"stages":0,"split_k":1,"reduction":0,"swizzle":0,)"
      R"("custom":0,"inner_shape":0,"cluster_shape":2},"ms":0.5,"first_ms":0.5})"
      "\n");
}

TEST_F(GemmTableFile, DamageIsRefusedAtItsLine) {
  const struct {
    std::string from, to;
    std::vector<std::string_view> words;
  } cases[] = {
      {"\"file\":\"Tessera's matrix products\",", "", {"t.jsonl:1 ", "no \"file\""}},
      {"Tessera's matrix products",
       "a list",
       {"t.jsonl:1: ", "\"Tessera's matrix products\"", "found \"a list\""}},
      {"\"version\":1", "\"version\":2", {"t.jsonl:1: ", "version 1, found 2"}},
      {"\"cudart\":13000", "\"cudart\":13000,\"driver\":1", {"t.jsonl:1: ", "field \"driver\""}},
      {"{\"m\":33", "{\"m\":33.5", {"t.jsonl:2: \"m\" ", "whole", "found 33.5"}},
      {"{\"m\":33", "{\"m\":0", {"t.jsonl:2: \"m\" ", "at least 1", "found 0"}},
      {"{\"m\":33", "{\"m\":33,", {"t.jsonl:2:"}},
      {"\"dtype\":\"fp32\"", "\"dtype\":\"fp33\"", {"t.jsonl:2: \"b\": ", "dtype \"fp33\"", "\"fp32\""}},
      {"\"ld\":40", "\"ld\":32", {"t.jsonl:2: \"a\": \"ld\" ", "at least 33"}},
      {"\"alignment\":2",
       "\"alignment\":3",
       {"t.jsonl:2: \"a\": \"alignment\" ", "1, 2, 4, 8 or 16, found 3"}},
      {"\"adds\":true", "\"adds\":1", {"t.jsonl:2: \"adds\" ", "found 1"}},
      {"\"summed\":20", "\"summed\":34", {"t.jsonl:2: \"summed\" ", "at least 1", "at most 33", "found 34"}},
      {"\"transposed\":true,\"ld\":40", "\"ld\":64", {"t.jsonl:2: ", "\"summed\"", "\"a\" ", "transposed"}},
      {"\"reduction\":2", "\"reduction\":1", {"t.jsonl:2: \"algorithm\": ", "split_k", "\"reduction\""}},
      {"\"split_k\":6", "\"split_k\":-1", {"t.jsonl:2: \"algorithm\": \"split_k\" ", "at least 0"}},
      {"\"tile\":2,", "", {"t.jsonl:2: \"algorithm\" ", "no \"tile\""}},
      {"\"ms\":0.125", "\"ms\":\"fast\"", {"t.jsonl:2: \"ms\" ", "found \"fast\""}},
      {"\"ms\":0.125", "\"ms\":1e308", {"t.jsonl:2: \"ms\" ", "found 1e+308"}},
      {"\"ms\":0.125,", "", {"t.jsonl:2: \"ms\" ", "found nothing"}},
      {"\"epilogue\":\"gelu_aux_bias\"", "\"epilogue\":\"gelu\"", {"t.jsonl:4: ", "epilogue \"gelu\""}},
      {"\"epilogue\":\"gelu_aux_bias\",", "", {"t.jsonl:4: ", "[65536, 768] x [2304, 768]^T in bf16"}}};
  for (const auto& [from, to, words] : cases) EXPECT_TRUE(says(refusal(changed(from, to)), words)) << from;
  EXPECT_TRUE(says(refusal(""), {"t.jsonl:1: ", "empty"}));
  EXPECT_EQ(refusal(text_of(some_table()) + "\n").find("t.jsonl:5"), 0u);
}

TEST_F(GemmTableFile, IsNamedAfterItsPlatform) {
  EXPECT_EQ(table_file_name(some_table().platform), "nvidia_h100_80gb_hbm3-130100-13000.jsonl");
}

TEST(GemmKey, IsThatOfTheProductItDescribes) {
  for (const auto& [key, choice] : some_table().choices) {
    if (key.a.alignment != kFullAlignment || key.d.alignment != kFullAlignment) continue;  // an address
    EXPECT_EQ(key_of(gemm_of(key)), key) << describe(key);
  }
}

TEST(GemmKey, CountsAlignmentUpTo16Bytes) {
  alignas(64) char data[256];
  Gemm gemm{.dtype = DType::kBF16,
            .m = 2,
            .n = 2,
            .k = 2,
            .a = {.data = data + 32},
            .b = {.data = data + 6},
            .d = {.data = data + 8}};
  GemmKey key = key_of(gemm);
  EXPECT_EQ(key.a.alignment, 16);
  EXPECT_EQ(key.b.alignment, 2);
  EXPECT_EQ(key.d.alignment, 8);
  gemm.c = data + 4;  // it is read as d is written
  EXPECT_EQ(key_of(gemm).d.alignment, 4);
}

TEST(GemmKey, IsDescribedInALine) {
  GemmKey key = product(65536, 2304, 768);
  key.epilogue = GemmEpilogue::kBias;
  EXPECT_EQ(describe(key), "[65536, 768] x [2304, 768]^T in bf16, bias");
  key.a.dtype = DType::kF32, key.a.transposed = true, key.adds = true, key.batch = 4;
  EXPECT_EQ(describe(key), "4 of fp32 [768, 65536]^T x [2304, 768]^T in bf16, adds, bias");
  key.summed = 768;
  EXPECT_EQ(describe(key), "4 of fp32 [768, 65536]^T x [2304, 768]^T in bf16, adds, bias, 768 sums");
}

}  // namespace
}  // namespace tessera::testing

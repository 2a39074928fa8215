// A tokenizer as fields of GGUF: names of pre-tokenizers, kinds of tokens, and what is refused.
#include "train/export/gguf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/tokenizers/tokenizer_json.h"
#include "tests/data/support.h"
#include "tests/data/tokenizers/support.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

const GgufValue* find(const GgufTokenizer& made, const std::string& key) {
  for (const GgufField& field : made.fields)
    if (field.key == "tokenizer." + key) return &field.value;
  return nullptr;
}
template <class T>
T value(const GgufTokenizer& made, const std::string& key) {
  const GgufValue* found = find(made, key);
  if (!found) throw std::runtime_error("no " + key);
  return std::get<T>(*found);
}

// Bytes 'a' and 'b', "ab", a hole at 3, and two added tokens
TokenizerDefinition small() {
  TokenizerDefinition made = definition_of(PreTokenizerKind::kGpt2);
  made.tokens = {"a", " ", "a ", ""};
  made.merges = {{.left = 0, .right = 1, .result = 2}};
  made.added = {{.id = 4, .content = "<|end|>", .special = true}, {.id = 5, .content = "<think>"}};
  return made;
}

TEST(GgufTokenizer, TokensTypesAndMerges) {
  const GgufTokenizer made =
      gguf_tokenizer(small(), 8, {{"eos_token_id", {4, 5}}, {"bos_token_id", 4}, {"pad_token_id", 99}}, "");
  EXPECT_EQ(value<std::string>(made, "ggml.model"), "gpt2");
  EXPECT_EQ(value<std::string>(made, "ggml.pre"), "gpt-2");
  EXPECT_EQ(value<std::vector<std::string>>(made, "ggml.tokens"),
            (std::vector<std::string>{"a", "Ġ", "aĠ", "[PAD3]", "<|end|>", "<think>", "[PAD6]", "[PAD7]"}));
  EXPECT_EQ(value<std::vector<int32_t>>(made, "ggml.token_type"),
            (std::vector<int32_t>{1, 1, 1, 5, 3, 4, 5, 5}));
  EXPECT_EQ(value<std::vector<std::string>>(made, "ggml.merges"), (std::vector<std::string>{"a Ġ"}));
  EXPECT_EQ(value<uint32_t>(made, "ggml.eos_token_id"), 4u);
  EXPECT_EQ(value<uint32_t>(made, "ggml.eot_token_id"), 5u);
  EXPECT_EQ(value<uint32_t>(made, "ggml.bos_token_id"), 4u);
  EXPECT_EQ(find(made, "ggml.padding_token_id"), nullptr) << "an id outside the vocabulary";
  EXPECT_FALSE(value<bool>(made, "ggml.add_bos_token"));
  EXPECT_EQ(find(made, "chat_template"), nullptr);
  EXPECT_TRUE(made.notices.empty());
}

TEST(GgufTokenizer, TheTemplateAroundTexts) {
  TokenizerDefinition definition = small();
  definition.before = {4};
  definition.after = {5};
  const json ids{{"bos_token_id", 4}, {"eos_token_id", 5}};
  const GgufTokenizer made = gguf_tokenizer(definition, 6, ids, "{{ messages }}");
  EXPECT_TRUE(value<bool>(made, "ggml.add_bos_token"));
  EXPECT_TRUE(value<bool>(made, "ggml.add_eos_token"));
  EXPECT_EQ(value<std::string>(made, "chat_template"), "{{ messages }}");
  expect_error(
      [&] {
        gguf_tokenizer(definition, 6, {{"bos_token_id", 0}}, "");
      },
      {"1 tokens before", "id 4", "only bos_token_id", "--format hf"});
  definition.before = {4, 4};
  expect_error([&] { gguf_tokenizer(definition, 6, ids, ""); }, {"2 tokens before"});
}

TEST(GgufTokenizer, NamesOfPreTokenizers) {
  for (const auto& [kind, name] :
       {std::pair(PreTokenizerKind::kGpt2, "gpt-2"), std::pair(PreTokenizerKind::kLlama3, "dbrx"),
        std::pair(PreTokenizerKind::kQwen2, "qwen2"), std::pair(PreTokenizerKind::kSmolLm2, "smollm")})
    EXPECT_EQ(llama_cpp_pre_tokenizer(definition_of(kind)), name);
  TokenizerDefinition llama3 = definition_of(PreTokenizerKind::kLlama3);
  llama3.ignore_merges = true;
  EXPECT_EQ(llama_cpp_pre_tokenizer(llama3), "llama-bpe");
  for (const auto& [file, name] : {std::pair("gpt2", "gpt-2"), std::pair("llama3", "llama-bpe"),
                                   std::pair("qwen2", "qwen2"), std::pair("smollm2", "smollm")}) {
    const std::string path = tokenizer_fixture(std::string(file) + ".json");
    EXPECT_EQ(llama_cpp_pre_tokenizer(read_tokenizer_json(read_file(path), path)), name);
  }
}

TEST(GgufTokenizer, WhatLlamaCppDoesNotDo) {
  TokenizerDefinition definition = small();
  definition.splits = {{.pattern = R"(\s+)", .behavior = SplitBehavior::kRemoved}};
  expect_error([&] { llama_cpp_pre_tokenizer(definition); },
               {R"(splits texts by "\\s+" (Removed))", "GPT-2, Llama 3, Qwen2 and SmolLM2", "--format hf"});
  definition = small();
  definition.ignore_merges = true;
  expect_error([&] { llama_cpp_pre_tokenizer(definition); }, {"without merges"});
  definition = small();
  definition.prefix_blank = true;
  expect_error([&] { llama_cpp_pre_tokenizer(definition); }, {"a blank before"});
  definition = definition_of(PreTokenizerKind::kQwen2);
  definition.tokens = {"a"};
  definition.added = {{.id = 1, .content = "<mask>", .strip_left = true}};
  const GgufTokenizer made = gguf_tokenizer(definition, 2, json::object(), "");
  ASSERT_EQ(made.notices.size(), 2u);
  EXPECT_NE(made.notices[0].find("NFC"), std::string::npos);
  EXPECT_NE(made.notices[1].find("<mask>"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing

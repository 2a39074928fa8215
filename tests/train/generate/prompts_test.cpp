// The ids of a prompt.
#include "train/generate/prompts.h"

#include <gtest/gtest.h>

#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

struct EncodePrompt : InTempFolder {};

TEST_F(EncodePrompt, NamesOfSpecialTokensAreTextUnlessTheyAreParsed) {
  const auto tokenizer = load_tokenizer(write("tokenizer.json", plain_tokenizer("qwen2")).string());
  const Prompt prompt{.text = "a<|im_end|>", .place = "--prompt"};
  EXPECT_EQ(encode_prompt(*tokenizer, prompt, SpecialTokens::kAsText), tokenizer->encode("a<|im_end|>"));
  std::vector<int32_t> ids = tokenizer->encode("a");
  ids.push_back(tokenizer->special_token("<|im_end|>"));
  EXPECT_EQ(encode_prompt(*tokenizer, prompt, SpecialTokens::kMatched), ids);
}

TEST_F(EncodePrompt, AnEmptyOneBeginsAText) {
  const Prompt prompt{.text = "", .place = "--prompt"};
  for (const char* name : {"qwen2", "llama3"}) {  // llama3's template puts a token before a text
    const auto tokenizer = load_tokenizer(tokenizer_fixture(std::string(name) + ".json").string());
    const auto before = tokenizer->before_text();
    const std::vector<int32_t> expected =
        before.empty() ? std::vector{tokenizer->end_of_text()} : std::vector(before.begin(), before.end());
    EXPECT_EQ(encode_prompt(*tokenizer, prompt, SpecialTokens::kAsText), expected) << name;
  }
}

}  // namespace
}  // namespace tessera

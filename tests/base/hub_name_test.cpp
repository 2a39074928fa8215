#include "kernels/base/hub_name.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(HubName, GivesTheCommandThatDownloadsIt) {
  for (const auto& [name, command] :
       {std::pair("Qwen/Qwen3-0.6B", "hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B "),
        std::pair("HuggingFaceTB/SmolLM2-135M", "hf download HuggingFaceTB/SmolLM2-135M --local-dir "),
        std::pair("gpt2", "hf download openai-community/gpt2 config.json ")})
    EXPECT_NE(hub_advice(name, HubFiles::kModel).find(command), std::string::npos) << name;
  const std::string tokenizer = hub_advice("gpt2", HubFiles::kTokenizer);
  EXPECT_NE(tokenizer.find("hf download openai-community/gpt2 tokenizer.json tokenizer_config.json "
                           "--local-dir models/gpt2 "),
            std::string::npos)
      << tokenizer;
}

TEST(HubName, APathIsNone) {
  for (const char* path :
       {"", "nowhere", "runs/quickstart", "data/mine", "./Qwen/Qwen3", "/Qwen/Qwen3", "../a/b", "a/b/c",
        "Qwen/", "/a", "a b/c", "owner/tokenizer.json", "kernels/missing\n", "~/x"})
    EXPECT_EQ(hub_advice(path, HubFiles::kModel), "") << path;
}

}  // namespace
}  // namespace tessera

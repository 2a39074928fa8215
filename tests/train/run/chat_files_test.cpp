// What checkpoints say of conversations, after data that has them.
#include "train/run/chat_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/chat/chat_form.h"
#include "data/manifest.h"
#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

using nlohmann::json;

struct ChatFiles : InTempFolder {
  std::unique_ptr<Tokenizer> tokenizer =
      load_tokenizer(write("tokenizer.json", plain_tokenizer("qwen2")).string());

  // A prepared folder with this template; "": that of an earlier version, which wrote no file
  std::filesystem::path data(const std::string& name, const std::string& jinja,
                             std::optional<std::vector<int32_t>> ends) {
    const auto made = folder_ / name;
    std::filesystem::create_directory(made);
    write_manifest(made, {.tokenizer = std::string(tokenizer->name()),
                          .vocab_size = tokenizer->vocab_size(),
                          .chat_template = jinja.empty() ? "chatml" : "a.jinja",
                          .turn_ends = std::move(ends)});
    if (!jinja.empty()) write(name + "/chat_template.jinja", jinja);
    return made;
  }
};

TEST_F(ChatFiles, TheEndsOfTurnsStandBesideTheEndOfText) {
  const ChatData chat = read_chat_data({data("d", "one", std::vector<int32_t>{701})});
  for (const std::string before :
       {"", R"({"eos_token_id": 0, "top_p": 0.5})", R"({"eos_token_id": [0, 3]})"}) {
    CopiedFiles files;
    if (!before.empty()) files["generation_config.json"] = before;
    EXPECT_FALSE(keep_chat(chat, *tokenizer, {{"eos_token_id", 0}}, files).empty());
    const json made = json::parse(files.at("generation_config.json"));
    const json expected = before.find('3') == before.npos ? json{0, 701} : json{0, 3, 701};
    EXPECT_EQ(made["eos_token_id"], expected);
    EXPECT_EQ(made.contains("top_p"), before.find("top_p") != before.npos);
    const CopiedFiles once = files;
    keep_chat(chat, *tokenizer, {{"eos_token_id", 0}}, files);
    EXPECT_EQ(files, once);  // a run that resumes finds them there
  }
}

TEST_F(ChatFiles, TheTemplateIsThatOfTheData) {
  const ChatData chat = read_chat_data({data("d", "one", std::vector<int32_t>{701})});
  CopiedFiles files{{"tokenizer_config.json", R"({"chat_template": "two", "x": 1})"}};
  const auto notices = keep_chat(chat, *tokenizer, json::object(), files);
  EXPECT_EQ(files.at("chat_template.jinja"), "one");
  EXPECT_EQ(json::parse(files.at("tokenizer_config.json")), json({{"x", 1}}));
  EXPECT_TRUE(std::ranges::any_of(notices, [](const auto& n) { return n.find("a.jinja") != n.npos; }));
  // The same one stays where it is.
  files = {{"tokenizer_config.json", R"({"chat_template": "one"})"}};
  keep_chat(chat, *tokenizer, json::object(), files);
  EXPECT_FALSE(files.contains("chat_template.jinja"));
  // Of an earlier version
  files.clear();
  keep_chat(read_chat_data({data("old", "", std::nullopt)}), *tokenizer, json::object(), files);
  EXPECT_EQ(files.at("chat_template.jinja"), chat_form("chatml").jinja);
}

TEST_F(ChatFiles, ARunWarnsOfTurnsWithoutAnEndAndOfSeveralTemplates) {
  const auto notices = [&](const std::vector<std::filesystem::path>& folders) {
    CopiedFiles files;
    std::string all;
    for (const std::string& notice : keep_chat(read_chat_data(folders), *tokenizer, json::object(), files))
      all += notice + "\n";
    return std::pair(all, files.contains("chat_template.jinja"));
  };
  const auto without = data("without", "one", std::vector<int32_t>{}),
             with = data("with", "two", std::vector<int32_t>{701});
  EXPECT_NE(notices({without}).first.find("no special token"), std::string::npos);
  EXPECT_NE(notices({with}).first.find("<|im_end|> (701)"), std::string::npos);
  const auto [said, kept] = notices({without, with});
  EXPECT_NE(said.find("several chat templates"), std::string::npos);
  EXPECT_FALSE(kept);
  EXPECT_EQ(notices({folder_ / "nothing"}).first, "");
}

TEST_F(ChatFiles, FurtherTemplatesAreCopied) {
  std::filesystem::create_directory(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "tools");
  write("additional_chat_templates/notes.txt", "none");
  const CopiedFiles copied = read_copied_files(folder_);
  ASSERT_TRUE(copied.contains("additional_chat_templates/tool_use.jinja"));
  EXPECT_FALSE(copied.contains("additional_chat_templates/notes.txt"));
  std::filesystem::create_directory(folder_ / "to");
  write_copied_files(folder_ / "to", copied);
  EXPECT_EQ(read_copied_files(folder_ / "to"), copied);
  EXPECT_TRUE(is_checkpoint_file("additional_chat_templates/tool_use.jinja"));
  for (const char* name :
       {"additional_chat_templates/a/b.jinja", "additional_chat_templates.jinja", "a/tool_use.jinja"})
    EXPECT_FALSE(is_checkpoint_file(name)) << name;
}

}  // namespace
}  // namespace tessera

// What a configuration takes from the folder of train.init_from, beside the model itself: a length of
// sequences that divides, fields to ignore, adapters by the names of the layers.
#include <nlohmann/json.hpp>

#include "kernels/base/text.h"
#include "model/formats/folder.h"
#include "model/formats/peft.h"
#include "tests/train/config/config_file.h"
#include "train/config/print_config.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

struct FolderOfAModel : ConfigFile {
  void describe(const std::string& name, const json& more) const {
    json fields{{"model_type", "llama"},    {"vocab_size", 257},
                {"hidden_size", 32},        {"num_hidden_layers", 2},
                {"num_attention_heads", 2}, {"num_key_value_heads", 1},
                {"intermediate_size", 64},  {"max_position_embeddings", 40960}};
    fields.update(more);
    std::filesystem::create_directories(folder_ / name);
    write(name + "/config.json", fields.dump());
  }
  std::string from(const std::string& name, const std::string& train = "") const {
    return "train:\n  init_from: " + in_quotes((folder_ / name).string()) + "\n  tokens_per_step: 65536\n" +
           train;
  }
};

TEST_F(FolderOfAModel, ALongContextThatDoesNotDivideGivesALengthThatDoes) {
  describe("qwen", json::object());
  const Config config = load(from("qwen"));
  EXPECT_EQ(config.model.context, 40960);
  EXPECT_EQ(config.sequence_length(), 4096);
  ASSERT_EQ(config.notices.size(), 1u);
  for (const char* word :
       {"train.sequence_length is 4096", "40960", "65536", "--set train.sequence_length=N"})
    EXPECT_NE(config.notices[0].find(word), std::string::npos) << config.notices[0];
  EXPECT_EQ(load(from("qwen", "  micro_batch: 32\n")).sequence_length(), 2048);
  describe("long", {{"max_position_embeddings", 131072}});
  EXPECT_EQ(load(from("long")).sequence_length(), 4096);
  describe("odd", {{"max_position_embeddings", 2000}});
  EXPECT_EQ(load(from("odd")).sequence_length(), 1024);
  // A context that divides is the length, as before; what a user sets stays.
  describe("short", {{"max_position_embeddings", 32768}});
  EXPECT_EQ(load(from("short")).sequence_length(), 32768);
  EXPECT_TRUE(load(from("short")).notices.empty());
  EXPECT_EQ(load(from("qwen", "  sequence_length: 512\n")).sequence_length(), 512);
  const std::string refused = refusal(from("qwen"), {"model.context=40960"});
  EXPECT_NE(refused.find("set train.sequence_length=32768"), std::string::npos) << refused;
  EXPECT_EQ(load(from("qwen"), {"model.context=40960", "train.sequence_length=32768"}).sequence_length(),
            32768);
}

TEST_F(FolderOfAModel, UnknownFieldsAreIgnoredByNameAndKept) {
  describe("noted", {{"neftune_noise_alpha", 5}, {"max_position_embeddings", 64}});
  const std::string refused = refusal(from("noted"));
  EXPECT_NE(refused.find("--ignore-field neftune_noise_alpha"), std::string::npos) << refused;
  const Config config = load(from("noted"), {"train.ignore_fields=[neftune_noise_alpha]"});
  EXPECT_EQ(config.train.ignore_fields, std::vector<std::string>{"neftune_noise_alpha"});
  EXPECT_EQ(load(print_config(config)).train.ignore_fields, config.train.ignore_fields);
  EXPECT_NE(
      refusal(from("noted"), {"train.ignore_fields=[neftune_noise_alpha, vocab_size]"}).find("is known"),
      std::string::npos);
  EXPECT_NE(refusal("", {"train.ignore_fields=[a, a]"}).find("twice"), std::string::npos);
}

// A Mistral without a window is a Llama; its layers have the same names.
TEST_F(FolderOfAModel, AdaptersGoByTheNamesOfTheLayers) {
  const json windowless{
      {"model_type", "mistral"}, {"sliding_window", nullptr}, {"max_position_embeddings", 64}};
  describe("mistral", windowless);
  const Config config = load(from("mistral", "  lora: {rank: 4}\n"));
  EXPECT_STREQ(family_of(config.model.resolved()), "llama");
  EXPECT_TRUE(has_layers_of_adapters("mistral", config.model.resolved()));
  EXPECT_TRUE(has_layers_of_adapters("llama", config.model.resolved()));
  for (const char* other : {"phi3", "gpt2", "gemma3", "none"})
    EXPECT_FALSE(has_layers_of_adapters(other, config.model.resolved())) << other;
  describe("phi", {{"model_type", "phi3"}, {"max_position_embeddings", 64}, {"pad_token_id", nullptr}});
  EXPECT_NE(refusal(from("phi", "  lora: {rank: 4}\n")).find("model_type phi3"), std::string::npos);
}

TEST_F(FolderOfAModel, APresetWithFewerBlocksThanItsPatternHasTheFirstOfThem) {
  const Config config = load("model:\n  preset: gemma3_1b\n  layers: 2\n");
  EXPECT_EQ(text_of(config.model.window), "512");
  EXPECT_EQ(load(print_config(config)).model, config.model);
  EXPECT_EQ(text_of(load("model:\n  preset: gemma3_1b\n  layers: 7\n").model.window), "512*5,full");
}

}  // namespace
}  // namespace tessera::testing

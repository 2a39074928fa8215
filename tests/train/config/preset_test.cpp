// model.preset, and what wins where several places set a key: default, preset, train.init_from, file, --set.
#include <nlohmann/json.hpp>

#include "model/formats/folder.h"
#include "model/presets.h"
#include "tests/says.h"
#include "tests/train/config/config_file.h"
#include "train/config/print_config.h"

namespace tessera {
namespace {

struct PresetKeys : ConfigFile {
  const std::string weights = (folder_ / "weights").string(), init_from = "train.init_from=" + weights;

  void write_folder(const ModelConfig& model) const {
    std::filesystem::create_directories(weights);
    write("weights/config.json", hugging_face_config(model, DType::kF32).dump());
  }
};

// The counts of parameters that the models' own pages and transformers' num_parameters() give
TEST(Presets, HaveAsManyParametersAsThePublishedModels) {
  const std::pair<Preset, int64_t> kPublished[] = {
      {Preset::kGpt2Small, 124'439'808},         {Preset::kGpt2Medium, 354'823'168},
      {Preset::kGpt2Large, 774'030'080},         {Preset::kGpt2Xl, 1'557'611'200},
      {Preset::kLlama32_1b, 1'235'814'400},      {Preset::kQwen25_05b, 494'032'768},
      {Preset::kQwen25_15b, 1'543'714'304},      {Preset::kQwen3_06b, 596'049'920},
      {Preset::kSmollm2_135m, 134'515'008},      {Preset::kSmollm2_360m, 361'821'120},
      {Preset::kLlama31_8b, 8'030'261'248},      {Preset::kLlama32_3b, 3'212'749'824},
      {Preset::kQwen25_3b, 3'085'938'688},       {Preset::kQwen25_7b, 7'615'616'512},
      {Preset::kQwen3_17b, 1'720'574'976},       {Preset::kQwen3_4b, 4'022'468'096},
      {Preset::kQwen3_8b, 8'190'735'360},        {Preset::kSmollm2_17b, 1'711'376'384},
      {Preset::kLlama31_70b, 70'553'706'496},    {Preset::kQwen25_14b, 14'770'033'664},
      {Preset::kQwen25_32b, 32'763'876'352},     {Preset::kQwen3_14b, 14'768'307'200},
      {Preset::kQwen3_32b, 32'762'123'264},      {Preset::kGemma3_270m, 268'098'176},
      {Preset::kGemma3_1b, 999'885'952},         {Preset::kGemma3_4b, 3'880'263'168},
      {Preset::kOlmo2_1b, 1'484'916'736},        {Preset::kOlmo2_7b, 7'298'617'344},
      {Preset::kOlmo2_13b, 13'716'198'400},      {Preset::kOlmo2_32b, 32'234'279'936},
      {Preset::kPhi4Mini, 3'836'021'760},        {Preset::kQwen3_30bA3b, 30'532'122'624},
      {Preset::kOlmoe_1b7b, 6'919'161'856},      {Preset::kMixtral8x7b, 46'702'792'704},
      {Preset::kGptOss_20b, 20'914'757'184},     {Preset::kGptOss_120b, 116'829'156'672},
      {Preset::kQwen15_moeA27b, 14'315'784'192}, {Preset::kGranite3_1bA400m, 1'334'628'352},
      {Preset::kBloom_560m, 559'214'592},        {Preset::kBloom_1b1, 1'065'314'304},
      {Preset::kBloom_1b7, 1'722'408'960},       {Preset::kBloom_3b, 3'002'557'440},
      {Preset::kBloom_7b1, 7'069'016'064},       {Preset::kGemma2_2b, 2'614'341'888},
      {Preset::kGemma2_9b, 9'241'705'984},       {Preset::kGemma2_27b, 27'227'128'320}};
  for (const auto& [preset, parameters] : kPublished)
    EXPECT_EQ(preset_model(preset).parameters(), parameters) << name_of(preset);
  EXPECT_EQ(std::size(kPublished) + 1, values_with_words<Preset>().size());
  expect_error([] { preset_model(Preset::kNone); }, {"the preset none has no model"});
}

TEST(Presets, AreOfTheirFamilies) {
  EXPECT_STREQ(family_of(preset_model(Preset::kGpt2Xl)), "gpt2");
  EXPECT_STREQ(family_of(preset_model(Preset::kLlama32_1b)), "llama");
  EXPECT_STREQ(family_of(preset_model(Preset::kSmollm2_360m)), "llama");
  EXPECT_STREQ(family_of(preset_model(Preset::kQwen25_05b)), "qwen2");
  EXPECT_STREQ(family_of(preset_model(Preset::kQwen25_15b)), "qwen2");
  EXPECT_STREQ(family_of(preset_model(Preset::kQwen3_06b)), "qwen3");
  EXPECT_STREQ(family_of(preset_model(Preset::kLlama31_8b)), "llama");
  EXPECT_STREQ(family_of(preset_model(Preset::kQwen25_7b)), "qwen2");
  EXPECT_STREQ(family_of(preset_model(Preset::kQwen3_8b)), "qwen3");
  EXPECT_STREQ(family_of(preset_model(Preset::kOlmo2_32b)), "olmo2");
  EXPECT_STREQ(family_of(preset_model(Preset::kQwen3_30bA3b)), "qwen3_moe");
  EXPECT_STREQ(family_of(preset_model(Preset::kOlmoe_1b7b)), "olmoe");
  EXPECT_STREQ(family_of(preset_model(Preset::kMixtral8x7b)), "mixtral");
  EXPECT_STREQ(family_of(preset_model(Preset::kGptOss_20b)), "gpt_oss");
  EXPECT_STREQ(family_of(preset_model(Preset::kGranite3_1bA400m)), "granitemoe");
  EXPECT_STREQ(family_of(preset_model(Preset::kQwen15_moeA27b)), "qwen2_moe");
  EXPECT_STREQ(family_of(preset_model(Preset::kBloom_560m)), "bloom");
  EXPECT_STREQ(family_of(preset_model(Preset::kGemma2_9b)), "gemma2");
}

// The names say them: 3 billion, 1 billion and 13 billion. The pages of gpt-oss count one table: 3.61 billion
// and 5.13 billion.
TEST(Presets, ATokenGoesThroughAPartOfTheExperts) {
  EXPECT_EQ(preset_model(Preset::kQwen3_30bA3b).active_parameters(), 3'353'032'704);
  EXPECT_EQ(preset_model(Preset::kOlmoe_1b7b).active_parameters(), 1'282'017'280);
  EXPECT_EQ(preset_model(Preset::kMixtral8x7b).active_parameters(), 12'879'925'248);
  const int64_t table = int64_t{201'088} * 2880;
  EXPECT_EQ(preset_model(Preset::kGptOss_20b).active_parameters() - table, 3'608'307'264);
  EXPECT_EQ(preset_model(Preset::kGptOss_120b).active_parameters() - table, 5'132'849'472);
  const ModelConfig dense = preset_model(Preset::kQwen3_06b);
  EXPECT_EQ(dense.active_parameters(), dense.parameters());
}

TEST_F(PresetKeys, SetsTheModel) {
  for (const Preset preset : values_with_words<Preset>()) {
    if (preset == Preset::kNone) continue;
    const std::string name = name_of(preset);
    const Config config = load(fmt::format("model:\n  preset: {}\ntrain:\n  sequence_length: 1024\n", name));
    EXPECT_EQ(config.model.resolved(), preset_model(preset)) << name;
    EXPECT_EQ(config.model.preset, preset);
    EXPECT_EQ(load(print_config(config)), config) << name;
  }
  EXPECT_EQ(load("model:\n  preset: gpt2_small\n").model.resolved(), load("").model.resolved());
}

TEST_F(PresetKeys, KeysOfTheFileAndOverridesWin) {
  const std::string yaml =
      "model:\n  layers: 4\n  preset: qwen3_0.6b\n  rope: {theta: 2e6}\ntrain:\n  sequence_length: 1024\n";
  const Config config = load(yaml, {"model.heads=8"});
  ModelConfig wanted = preset_model(Preset::kQwen3_06b);
  wanted.layers = 4;
  wanted.heads = 8;
  wanted.rope.theta = 2e6;
  EXPECT_EQ(config.model.resolved(), wanted);
  // Sizes that the preset has as auto would mean them follow those that are set.
  const Config small = load("", {"model.preset=gpt2_xl", "model.heads=4", "model.channels=64"});
  EXPECT_EQ(small.model.resolved().head_dim, 16);
  EXPECT_EQ(small.model.resolved().mlp_width, 256);
  // The last --set of model.preset wins, and none takes it away.
  EXPECT_EQ(load(yaml, {"model.preset=smollm2_135m"}).model.channels, 576);
  EXPECT_EQ(refusal("model:\n  preset: gpt2_small\n", {"model.preset=none"}), "accepted");
}

TEST_F(PresetKeys, IsCitedWhereItsValuesAreRefused) {
  EXPECT_TRUE(
      says(refused_override("model.preset=qwen3"), {"--set model.preset=qwen3", "model.preset", "none",
                                                    "gpt2_small", "qwen3_8b", "smollm2_1.7b", "\"qwen3\""}));
  EXPECT_TRUE(says(refusal("model:\n  preset: qwen3_0.6b\n  heads: 12\n"),
                   {"run.yaml:3:10", "model.kv_heads", "8", "qwen3_0.6b", "model.heads", "12", "6", "12"}));
  EXPECT_TRUE(
      says(refusal("model:\n  preset: gpt2_small\ntrain:\n  sequence_length: 2048\n"),
           {"run.yaml:4:20", "train.sequence_length", "2048", "model.context", "1024", "gpt2_small"}));
  EXPECT_TRUE(says(refusal("model:\n  preset: llama3.2_1b\ntrain:\n  tokens_per_step: 1024\n"),
                   {"run.yaml:4:20", "train.tokens_per_step", "1024", "model.context", "131072",
                    "llama3.2_1b", "131072"}));
  EXPECT_TRUE(says(
      refusal("model:\n  preset: llama3.2_1b\n  rope: {low_frequency: 4}\n"),
      {"run.yaml:3:25", "model.rope.low_frequency", "4", "model.rope.high_frequency", "4", "llama3.2_1b"}));
  const std::string no_family = refusal("model:\n  preset: llama3.2_1b\n  norm: layernorm\n");
  EXPECT_EQ(no_family.substr(0, 14), "run.yaml:3:9: ") << no_family;
}

TEST_F(PresetKeys, AScalingIsTakenWholeOrNotAtAll) {
  const auto rope = [&](const std::vector<std::string>& overrides) {
    return load("model:\n  preset: llama3.2_1b\ntrain:\n  sequence_length: 1024\n", overrides).model.rope;
  };
  EXPECT_EQ(rope({"model.rope.scaling=none"}), (Rope{.theta = 500000}));
  EXPECT_EQ(rope({"model.rope.scaling=linear", "model.rope.factor=4"}),
            (Rope{.theta = 500000, .scaling = RopeScaling::kLinear, .factor = 4}));
  Rope wanted = preset_model(Preset::kLlama32_1b).rope;
  EXPECT_EQ(rope({"model.rope.scaling=llama3"}), wanted);
  wanted.factor = 8;
  EXPECT_EQ(rope({"model.rope.factor=8"}), wanted);
}

TEST_F(PresetKeys, TheFolderWinsOverDefaultsAndMustAgreeWithTheRest) {
  const ModelConfig qwen = preset_model(Preset::kQwen3_06b);
  write_folder(qwen);
  const std::vector<std::string> short_sequences{init_from, "train.sequence_length=1024"};
  EXPECT_EQ(load("", short_sequences).model.resolved(), qwen);
  EXPECT_EQ(load("model:\n  preset: qwen3_0.6b\n", short_sequences).model.resolved(), qwen);
  EXPECT_EQ(load(print_config(load("", short_sequences))).model.resolved(), qwen);

  const std::string layers = refusal("model:\n  layers: 4\n", short_sequences);
  EXPECT_TRUE(says(layers.substr(0, layers.find(". train")),
                   {"run.yaml:2:11", "model.layers", "4", "num_hidden_layers", "28", "weights/config.json"}));
  const std::string heads = refusal("", {init_from, "model.kv_heads=auto"});
  EXPECT_TRUE(
      says(heads.substr(0, heads.find(". train")), {"--set model.kv_heads=auto", "model.kv_heads", "16",
                                                    "num_key_value_heads", "8", "weights/config.json"}));
  const std::string norm = refusal("", {init_from, "model.norm=layernorm"});
  EXPECT_TRUE(says(norm.substr(0, norm.find(". train")), {"--set model.norm=layernorm", "model.norm",
                                                          "model_type", "\"qwen3\"", "weights/config.json"}));

  const std::string preset = refusal("model:\n  preset: gpt2_small\n", short_sequences);
  EXPECT_TRUE(
      says(preset.substr(0, 70), {"gpt2_small", "model.vocab_size", "50257", "vocab_size", "151936"}));
  EXPECT_NE(preset.find("is 12, and num_hidden_layers is 28"), std::string::npos) << preset;
  EXPECT_NE(preset.find("remove model.preset"), std::string::npos) << preset;
}

TEST_F(PresetKeys, TheFolderAloneIsEnoughInEveryFamily) {
  for (const Preset preset : values_with_words<Preset>()) {
    if (preset == Preset::kNone) continue;
    SCOPED_TRACE(name_of(preset));
    const ModelConfig model = preset_model(preset);
    write_folder(model);
    const Config config = load("train:\n  sequence_length: 1024\n", {init_from});
    EXPECT_EQ(config.model.resolved(), model);
    EXPECT_EQ(config.model.preset, Preset::kNone);
    EXPECT_EQ(load(print_config(config)), config);
    EXPECT_EQ(load_config(folder_ / "run.yaml", {}, true), config);  // as a run resumes
  }
}

TEST_F(PresetKeys, WithRotaryPositionsTheContextIsFree) {
  ModelConfig model = preset_model(Preset::kSmollm2_135m);
  write_folder(model);
  for (const int64_t context : {512, 65536}) {
    const Config config =
        load("", {init_from, fmt::format("model.context={}", context), "train.tokens_per_step=65536"});
    model.context = context;
    EXPECT_EQ(config.model.resolved(), model);
  }
  // A preset's context does not win over the folder's.
  model.context = 4096;
  write_folder(model);
  EXPECT_EQ(load("model:\n  preset: smollm2_135m\n", {init_from}).model.context, 4096);
}

TEST_F(PresetKeys, ALongerContextKeepsTheOriginalOne) {
  ModelConfig model = preset_model(Preset::kSmollm2_135m);
  model.rope.scaling = RopeScaling::kYarn;
  model.rope.factor = 4;
  write_folder(model);
  const auto original = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> all{init_from, "train.sequence_length=1024"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const ModelConfig found = load("", all).model.resolved();
    return found.rope.original_context > 0 ? found.rope.original_context : found.context;
  };
  EXPECT_EQ(original({}), 8192);
  EXPECT_EQ(original({"model.context=32768"}), 8192);
  EXPECT_EQ(original({"model.context=1024"}), 8192);
}

}  // namespace
}  // namespace tessera

// config.json of a folder: what is taken over, what is refused, and that it sets the model of a
// configuration.
#include <nlohmann/json.hpp>

#include "model/formats/folder.h"
#include "tests/data/support.h"
#include "tests/model/formats/folder_support.h"
#include "tests/model_variants.h"
#include "train/config/config.h"
#include "train/config/load_config.h"
#include "train/config/print_config.h"
#include "train/session/from_config.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

constexpr ModelConfig kTinyConfig{.vocab_size = 61, .context = 16, .layers = 2, .heads = 2, .channels = 24};

constexpr DropoutConfig kTransformersDefault{0.1, 0.1, 0.1};

struct GPT2Config : InTempFolder {
  ModelConfig read(const json& fields) const {
    write_fields(folder_, fields);
    return read_model_config(folder_).model;
  }
  ModelConfig read_with(const json& more) const {
    json fields = gpt2_fields(kTinyConfig);
    fields.update(more);
    return read(fields);
  }
  void refused(const json& more, std::initializer_list<std::string_view> words) const {
    expect_error([&] { read_with(more); }, words);
  }
};

TEST_F(GPT2Config, AbsentFieldsAreTransformersDefaults) {
  EXPECT_EQ(read({{"model_type", "gpt2"}}), (ModelConfig{.vocab_size = 50257,
                                                         .context = 1024,
                                                         .layers = 12,
                                                         .heads = 12,
                                                         .channels = 768,
                                                         .mlp_width = 3072,
                                                         .norm_epsilon = 1e-5f,
                                                         .mlp = Mlp::kGelu,
                                                         .tied = true,
                                                         .scale_attention = true,
                                                         .scale_attention_by_layer = false,
                                                         .dropout = kTransformersDefault}));
}

TEST_F(GPT2Config, EveryFieldThatChangesTheResultIsTaken) {
  EXPECT_EQ(read_with(json::object()), kTinyConfig);
  EXPECT_EQ(read_with({{"n_inner", nullptr}}).mlp_width, 96);
  EXPECT_EQ(read_with({{"n_inner", 40},
                       {"activation_function", "relu"},
                       {"layer_norm_epsilon", 1e-3},
                       {"tie_word_embeddings", false},
                       {"scale_attn_weights", false},
                       {"scale_attn_by_inverse_layer_idx", true}}),
            (ModelConfig{.vocab_size = 61,
                         .context = 16,
                         .layers = 2,
                         .heads = 2,
                         .channels = 24,
                         .mlp_width = 40,
                         .norm_epsilon = 1e-3f,
                         .mlp = Mlp::kRelu,
                         .tied = false,
                         .scale_attention = false,
                         .scale_attention_by_layer = true}));
  const std::map<std::string, Mlp> names{{"gelu_new", Mlp::kGelu},
                                         {"gelu_pytorch_tanh", Mlp::kGelu},
                                         {"gelu", Mlp::kGeluExact},
                                         {"relu", Mlp::kRelu},
                                         {"relu2", Mlp::kRelu2}};
  for (const auto& [name, activation] : names)
    EXPECT_EQ(read_with({{"activation_function", name}}).mlp, activation) << name;
}

TEST_F(GPT2Config, OtherNamesOfAFieldAreKnown) {
  EXPECT_EQ(read({{"model_type", "gpt2"},
                  {"vocab_size", 61},
                  {"max_position_embeddings", 16},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 2},
                  {"hidden_size", 24},
                  {"attn_pdrop", 0.0},
                  {"embd_pdrop", 0},
                  {"resid_pdrop", 0.0}}),
            kTinyConfig);
  EXPECT_EQ(read_with({{"hidden_size", 24}, {"n_ctx", 1024}}), kTinyConfig);
  refused({{"hidden_size", 32}}, {"config.json: n_embd is 24 and hidden_size is 32"});
}

TEST_F(GPT2Config, WhatIsNotComputedIsRefusedByName) {
  refused({{"model_type", "bert"}},
          {"config.json", "\"model_type\"", R"("gpt2", "llama", "mistral", "qwen2", "qwen3")", "found \"bert\""});
  refused({{"model_type", 5}}, {"\"model_type\"", "found 5"});
  for (const char* name : {"gelu_fast", "silu", "quick_gelu", "swish", "tanh"})
    refused({{"activation_function", name}},
            {"\"activation_function\"", "\"gelu_new\"", "found \"" + std::string(name)});
  refused({{"add_cross_attention", true}}, {"\"add_cross_attention\" is true"});
  refused({{"is_encoder_decoder", true}}, {"\"is_encoder_decoder\" is true"});
  refused({{"pruned_heads", {{"0", {1}}}}}, {"\"pruned_heads\" is {\"0\":[1]}"});
  refused({{"quantization_config", {{"bits", 4}}}}, {"\"quantization_config\"", "float32"});
  refused({{"auto_map", {{"AutoModel", "x.Y"}}}}, {"\"auto_map\"", "own code"});
  refused({{"rope_theta", 1e4}}, {"\"rope_theta\"", "unknown", "--ignore-field rope_theta"});
  refused({{"layer_norm_eps", 1e-3}}, {"\"layer_norm_eps\"", "unknown"});
}

TEST_F(GPT2Config, ValuesHaveKindsAndRanges) {
  for (const json& value : {json(1e30), json(1.5), json(-1), json(0), json("2"), json(nullptr), json(12.0),
                            json(9223372036854775808u), json(2'000'000'000)})
    for (const char* field : {"n_layer", "n_embd", "vocab_size", "n_positions", "n_head"})
      refused({{field, value}}, {"\"" + std::string(field) + "\"", "whole"});
  refused({{"n_inner", 0}}, {"\"n_inner\"", "whole"});
  for (const json& value : {json(0), json(-1e-5), json("x"), json(nullptr), json(2)})
    refused({{"layer_norm_epsilon", value}}, {"\"layer_norm_epsilon\"", "above 0"});
  for (const char* field : {"tie_word_embeddings", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"})
    refused({{field, 1}}, {"\"" + std::string(field) + "\"", "true or false", "found 1"});
  write("config.json", "{\"model_type\": \"gpt2\", \"n_layer\": 2,\n\"n_layer\": 3}");
  expect_error([&] { read_model_config(folder_); }, {"config.json:2:9", "\"n_layer\"", "twice"});
  write("config.json", "[]");
  expect_error([&] { read_model_config(folder_); }, {"JSON object"});
}

TEST_F(GPT2Config, FieldsThatChangeNothingAreAccepted) {
  // What transformers 4 and 5 save for a GPT-2, and what the model hub's gpt2 has
  EXPECT_EQ(read_with(json::parse(R"({
    "_name_or_path": "gpt2", "_commit_hash": "ab", "architectures": ["GPT2LMHeadModel"],
    "add_cross_attention": false, "bos_token_id": 50256, "dtype": "float32",
    "eos_token_id": 50256, "initializer_range": 0.02, "n_ctx": 16, "pad_token_id": null,
    "pruned_heads": {}, "quantization_config": null, "reorder_and_upcast_attn": true,
    "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
    "summary_type": "cls_index", "summary_use_proj": true, "task_specific_params":
    {"text-generation": {"do_sample": true, "max_length": 50}}, "torch_dtype": "float32",
    "transformers_version": "4.40.0", "use_cache": true, "output_past": true, "num_labels": 3,
    "id2label": {"0": "A"}, "not_known_but_null": null})")),
            kTinyConfig);
  EXPECT_NO_THROW(read_model_config(TESSERA_SOURCE_DIR "/tests/fixtures/gpt2_reference"));
}

TEST_F(GPT2Config, DropoutIsReadAndNoticed) {
  const auto notices = [&](const DropoutConfig& wanted) {
    ModelConfig model = kTinyConfig;
    model.dropout = wanted;
    return check_same_model(folder_, model).notices;
  };
  EXPECT_EQ(read_with({{"attn_pdrop", 0.1}, {"embd_pdrop", 0.2}, {"resid_pdrop", 0.3}}).dropout,
            (DropoutConfig{.embedding = 0.2, .residual = 0.3, .attention = 0.1}));
  EXPECT_TRUE(notices({}).empty());  // the run drops nothing
  EXPECT_EQ(notices({.embedding = 0.2, .residual = 0.3}).at(0),
            folder_.string() +
                "/config.json has dropout (embd_pdrop 0.2, resid_pdrop 0.3), which this run uses, too; --set "
                "model.dropout=0 trains without");
  json fields = gpt2_fields(kTinyConfig);
  for (const char* field : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) fields.erase(field);
  EXPECT_EQ(read(fields).dropout, kTransformersDefault);
  EXPECT_NE(notices(kTransformersDefault).at(0).find("(embd_pdrop 0.1, resid_pdrop 0.1, attn_pdrop 0.1)"),
            std::string::npos);
  EXPECT_EQ(read_with(json::object()).dropout, DropoutConfig{});
  EXPECT_TRUE(notices({}).empty());
  for (const json& value : {json(-0.1), json(1), json("x"), json(true)})
    refused({{"attn_pdrop", value}}, {"\"attn_pdrop\"", "at least 0", "below 1"});
}

TEST_F(GPT2Config, DropoutIsWritten) {
  ModelConfig model = kTinyConfig;
  model.dropout = {.embedding = 0.25, .residual = 0.1, .attention = 0.5};
  const json fields = json::parse(hugging_face_config(model, DType::kF32).dump());
  EXPECT_EQ(fields["embd_pdrop"], 0.25);
  EXPECT_EQ(fields["resid_pdrop"], 0.1);
  EXPECT_EQ(fields["attn_pdrop"], 0.5);
  EXPECT_EQ(read(fields), model);
}

TEST_F(GPT2Config, WhatIsWrittenReadsBackTheSame) {
  std::vector<Variant> all = variants_of(kTinyConfig);
  all.push_back({"plain", kTinyConfig});
  for (const Variant& variant : all) {
    const json fields = json::parse(hugging_face_config(variant.model, DType::kF32).dump());
    EXPECT_EQ(read(fields), variant.model) << variant.name;
    EXPECT_TRUE(read_model_config(folder_).notices.empty());
  }
  const std::string plain = hugging_face_config(kTinyConfig, DType::kF32).dump();
  for (const char* part :
       {"\"layer_norm_epsilon\":1e-05", "\"n_inner\":96", "\"activation_function\":\"gelu_new\"",
        "\"tie_word_embeddings\":true", "\"scale_attn_weights\":true",
        "\"scale_attn_by_inverse_layer_idx\":false", "\"architectures\":[\"GPT2LMHeadModel\"]"})
    EXPECT_NE(plain.find(part), std::string::npos) << part << "\n" << plain;
}

TEST_F(GPT2Config, AnotherModelIsRefusedInEveryField) {
  write_fields(folder_, json::parse(hugging_face_config(kTinyConfig, DType::kF32).dump()));
  EXPECT_NO_THROW(check_same_model(folder_, kTinyConfig));
  for (const Variant& variant : variants_of(kTinyConfig))
    if (variant.name != "all") {
      try {
        check_same_model(folder_, variant.model);
        ADD_FAILURE() << variant.name;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("this configuration has model."), std::string::npos);
      }
    }
  expect_error([&] { check_same_model(folder_, variants_of(kTinyConfig).back().model); },
               {"n_inner is 96", "model.mlp_width=72", "its activation_function is gelu",
                "model.norm_epsilon=0.001", "tie_word_embeddings is true", "scale_attn_weights is true",
                "scale_attn_by_inverse_layer_idx is false"});
}

// ---- train.init_from in a configuration ----

struct InitFrom : InTempFolder {
  std::string folder = (folder_ / "weights").string();
  std::string set = "train.init_from=" + folder;

  InitFrom() {
    std::filesystem::create_directories(folder);
    write_fields(folder,
                 json::parse(hugging_face_config(variants_of(kTinyConfig).back().model, DType::kF32).dump()));
  }
  Config load(std::string_view yaml, std::vector<std::string> overrides, bool resume = false) const {
    return load_config(write("run.yaml", yaml), overrides, resume);
  }
  void refused(std::string_view yaml, const std::vector<std::string>& overrides,
               std::initializer_list<std::string_view> words) const {
    expect_error([&] { load(yaml, overrides); }, words);
  }
};

// The folder's dropout is a default: any key may change it, and it is no contradiction.
TEST_F(InitFrom, DropoutIsThatOfTheFolderUnlessItIsSet) {
  ModelConfig model = kTinyConfig;
  model.dropout = {.embedding = 0.25, .residual = 0.1, .attention = 0.5};
  write_fields(folder, json::parse(hugging_face_config(model, DType::kF32).dump()));
  const std::string step = "train.tokens_per_step=64";
  const auto dropout = [&](const std::string& yaml, std::vector<std::string> more, bool resume = false) {
    more.insert(more.end(), {set, step});
    return load(yaml, more, resume).model.dropout;
  };
  EXPECT_EQ(dropout("", {}), model.dropout);
  EXPECT_EQ(dropout("", {}, true), model.dropout);
  EXPECT_EQ(dropout("", {"model.dropout=0"}), DropoutConfig{});
  EXPECT_EQ(dropout("model: {dropout: {attention: 0}}\n", {}),
            (DropoutConfig{.embedding = 0.25, .residual = 0.1}));
  EXPECT_EQ(load(print_config(load("", {set, step})), {}).model.dropout, model.dropout);
  // Only a run needs a multiple of 1 / 256.
  json fields = json::parse(hugging_face_config(kTinyConfig, DType::kF32).dump());
  fields["attn_pdrop"] = 0.001;
  write_fields(folder, fields);
  refused("", {set, step},
          {folder + "/config.json: attn_pdrop: model.dropout.attention: a dropout probability"});
  EXPECT_EQ(dropout("", {"model.dropout.attention=0"}), DropoutConfig{});
}

TEST_F(InitFrom, AloneSetsTheModel) {
  const ModelConfig wanted = variants_of(kTinyConfig).back().model;
  const Config config = load("train:\n  tokens_per_step: 64\n", {set});
  EXPECT_EQ(model_config(config), wanted);
  EXPECT_EQ(config.sequence_length(), 16);
  // What is printed, as into a run's config.yaml, holds the values and reads back.
  const std::string yaml = print_config(config);
  EXPECT_NE(yaml.find("\n  layers: 2\n"), std::string::npos) << yaml;
  EXPECT_EQ(load(yaml, {}), config);
}

TEST_F(InitFrom, AKeyThatAgreesIsFine) {
  write_gpt2(folder, kTinyConfig);
  const char* yaml =
      "model: {layers: 2, heads: 2, channels: 24, context: 16, vocab_size: 61, mlp_width: auto, "
      "norm_epsilon: 0.00001, mlp: gelu}\ntrain: {tokens_per_step: 64}\n";
  EXPECT_EQ(model_config(load(yaml, {set})), kTinyConfig);
  EXPECT_EQ(model_config(load("", {set, "train.tokens_per_step=64", "model.mlp_width=96"})), kTinyConfig);
}

TEST_F(InitFrom, AKeyThatContradictsIsRefusedWithBothValues) {
  refused("model:\n  layers: 12\n  heads: 2\n", {set, "model.norm_epsilon=1e-5"},
          {"run.yaml:2:11: model.layers is 12, and n_layer is 2; ",
           "model.norm_epsilon (--set model.norm_epsilon=1e-5) is 1.0e-05, and layer_norm_epsilon is 0.001",
           "/weights/config.json", "remove model.layers, model.norm_epsilon from the configuration",
           "--config finetune.yaml --set " + set});
  refused("", {"model.mlp_width=auto", set}, {"model.mlp_width is 96, and n_inner is 72"});
  refused("", {"model.tied=true", set}, {"model.tied is true", "tie_word_embeddings is false"});
  refused("", {"model.context=8", set},
          {"model.context is 8, and n_positions is 16", "set train.sequence_length"});
  refused("", {"model.context=32", set},
          {"model.context is 32, and n_positions is 16", "model.position_extension=interpolate"});
  refused("", {"model.context=8", "model.position_extension=repeat", set}, {"model.context is 8"});
  EXPECT_EQ(load("", {"model.context=32", "model.position_extension=repeat", "train.tokens_per_step=64", set})
                .model.context,
            32);
}

TEST_F(InitFrom, WhatCannotBeReadIsRefusedAtTheKey) {
  refused("train:\n  init_from: nowhere\n", {}, {"run.yaml:2:14: train.init_from: nowhere", "folder"});
  std::filesystem::create_directories(folder_ / "run/checkpoints");
  refused("", {"train.init_from=" + (folder_ / "run").string()},
          {"has no config.json", "folders in", "run/checkpoints"});
  json fields = gpt2_fields(kTinyConfig);
  fields["n_embd"] = 28;
  write_fields(folder, fields);
  refused("", {set}, {"config.json: n_embd: model.channels", "multiple of 8", "28"});
  fields["n_embd"] = 24;
  fields["n_head"] = 5;
  write_fields(folder, fields);
  refused("", {set}, {"config.json: n_head is 5", "n_embd 24"});
}

TEST_F(InitFrom, ARunThatGoesOnDoesNotNeedTheFolder) {
  const Config config = load("train:\n  tokens_per_step: 64\n", {set});
  write_fields(folder, gpt2_fields(kTinyConfig));
  EXPECT_EQ(load(print_config(config), {}, true), config);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(load(print_config(config), {}, true), config);
  expect_error([&] { load(print_config(config), {}); }, {"is not a folder"});
}

}  // namespace
}  // namespace tessera::testing

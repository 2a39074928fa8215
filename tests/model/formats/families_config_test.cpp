// config.json of the families after GPT-2: what transformers 4 and 5 write, what is refused, what is written.
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/formats/family.h"
#include "model/formats/folder.h"
#include "model/presets.h"
#include "model/rope.h"
#include "tests/data/support.h"
#include "tests/model/formats/folder_support.h"
#include "tests/model_families.h"
#include "tests/model_variants.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

// The sizes of published models, in the words of the release that saved them
constexpr const char* kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})";
constexpr const char* kTinyLlama = R"({
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632,
  "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 22, "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float32",
  "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000})";
constexpr const char* kSmolLM2 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
  "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": true,
  "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9,
  "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
  "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})";
constexpr const char* kQwen25 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})";
// Version 0.3
constexpr const char* kMistral7 = R"({
  "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.42.0.dev0", "use_cache": true, "vocab_size": 32768})";
// gemma-3-1b-pt
constexpr const char* kGemma1b = R"({
  "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid",
  "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
  "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
  "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
  "transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144})";

ModelConfig llama_sizes(int64_t V, int64_t T, int64_t L, int64_t H, int64_t K, int64_t D, int64_t C,
                        int64_t F) {
  return {.vocab_size = V,
          .context = T,
          .layers = L,
          .heads = H,
          .channels = C,
          .kv_heads = K,
          .head_dim = D,
          .mlp_width = F,
          .norm = NormKind::kRmsNorm,
          .norm_epsilon = 1e-5f,
          .positions = Positions::kRope,
          .mlp = Mlp::kSwiglu,
          .bias = Bias::kNone};
}

struct Published {
  const char *name, *family, *config;
  ModelConfig model;
  int64_t parameters;  // as their pages say
};

std::vector<Published> published() {
  ModelConfig llama = llama_sizes(128256, 131072, 16, 32, 8, 64, 2048, 8192);
  llama.rope = {.theta = 500000, .scaling = RopeScaling::kLlama3, .factor = 32, .original_context = 8192};
  ModelConfig tiny = llama_sizes(32000, 2048, 22, 32, 4, 64, 2048, 5632);
  tiny.tied = false;
  ModelConfig smol = llama_sizes(49152, 8192, 30, 9, 3, 64, 576, 1536);
  smol.rope.theta = 100000;
  ModelConfig qwen2 = llama_sizes(151936, 32768, 24, 14, 2, 64, 896, 4864);
  qwen2.rope.theta = 1e6, qwen2.norm_epsilon = 1e-6f, qwen2.bias = Bias::kQkv;
  ModelConfig qwen3 = llama_sizes(151936, 40960, 28, 16, 8, 128, 1024, 3072);
  qwen3.rope.theta = 1e6, qwen3.norm_epsilon = 1e-6f, qwen3.qk_norm = QkNorm::kHeads;
  return {{"Llama-3.2-1B", "llama", kLlama32, llama, 1'235'814'400},
          {"TinyLlama-1.1B", "llama", kTinyLlama, tiny, 1'100'048'384},
          {"SmolLM2-135M", "llama", kSmolLM2, smol, 134'515'008},
          {"Qwen2.5-0.5B", "qwen2", kQwen25, qwen2, 494'032'768},
          {"Qwen3-0.6B", "qwen3", kQwen3, qwen3, 596'049'920}};
}

struct FamilyConfig : InTempFolder {
  FoundModel found(const json& fields) const {
    write_fields(folder_, fields);
    return read_model_config(folder_);
  }
  ModelConfig read(const json& fields) const { return found(fields).model; }
  ModelConfig read_with(const char* config, const json& more) const {
    json fields = json::parse(config);
    fields.update(more);
    return read(fields);
  }
  void refused(const char* config, const json& more, std::initializer_list<std::string_view> words) const {
    expect_error([&] { read_with(config, more); }, words);
  }
};

TEST_F(FamilyConfig, PublishedModelsAreRead) {
  for (const Published& one : published()) {
    const FoundModel model = found(json::parse(one.config));
    EXPECT_EQ(model.model, one.model) << one.name;
    EXPECT_EQ(model.family, one.family) << one.name;
    EXPECT_EQ(model.model.parameters(), one.parameters) << one.name;
    EXPECT_TRUE(model.notices.empty()) << one.name;
    EXPECT_STREQ(family_of(model.model), one.family) << one.name;
  }
}

// rope_theta and rope_scaling move into rope_parameters, torch_dtype becomes dtype, layer_types are listed.
TEST_F(FamilyConfig, SoAreTheirFilesOfTransformers5) {
  for (const Published& one : published()) {
    json fields = json::parse(one.config);
    json parameters = fields.contains("rope_scaling") && fields["rope_scaling"].is_object()
                          ? fields["rope_scaling"]
                          : json{{"rope_type", "default"}};
    parameters["rope_theta"] = fields.value("rope_theta", json(10000.0));
    fields["rope_parameters"] = parameters;
    fields["dtype"] = fields["torch_dtype"];
    for (const char* gone : {"rope_scaling", "rope_theta", "torch_dtype"}) fields.erase(gone);
    if (one.family != std::string("llama"))
      fields["layer_types"] =
          std::vector<std::string>(static_cast<size_t>(one.model.layers), "full_attention");
    fields.update(json{{"pad_token_id", nullptr}, {"transformers_version", "5.0.0"}, {"pretraining_tp", 1}});
    if (one.family != std::string("llama")) fields.erase("pretraining_tp");
    const FoundModel model = found(fields);
    EXPECT_EQ(model.model, one.model) << one.name;
    EXPECT_EQ(model.field_of("model.rope.theta"), "rope_parameters.rope_theta");
  }
}

TEST_F(FamilyConfig, AbsentFieldsAreTransformersDefaults) {
  ModelConfig llama = llama_sizes(32000, 2048, 32, 32, 32, 128, 4096, 11008);
  llama.norm_epsilon = 1e-6f, llama.tied = false;
  EXPECT_EQ(read({{"model_type", "llama"}}), llama);
  ModelConfig qwen = llama_sizes(151936, 32768, 32, 32, 32, 128, 4096, 22016);
  qwen.norm_epsilon = 1e-6f, qwen.tied = false, qwen.bias = Bias::kQkv;
  EXPECT_EQ(read({{"model_type", "qwen2"}}), qwen);
  qwen.bias = Bias::kNone, qwen.qk_norm = QkNorm::kHeads;
  EXPECT_EQ(read({{"model_type", "qwen3"}}), qwen);
  // Computed from other fields
  EXPECT_EQ(read({{"model_type", "llama"}, {"num_attention_heads", 16}}).kv_heads, 16);
  EXPECT_EQ(read({{"model_type", "llama"}, {"num_attention_heads", 16}}).head_dim, 256);
  EXPECT_EQ(read_with(kLlama32, {{"num_key_value_heads", nullptr}, {"head_dim", nullptr}}).kv_heads, 32);
  EXPECT_EQ(read_with(kQwen3, {{"num_attention_heads", 8}, {"num_key_value_heads", 8}}).head_dim, 128);
}

TEST_F(FamilyConfig, EveryKeyHasTheNameOfItsField) {
  const FoundModel llama = found(json::parse(kLlama32));
  EXPECT_EQ(llama.field_of("model.kv_heads"), "num_key_value_heads");
  EXPECT_EQ(llama.field_of("model.mlp"), "hidden_act");
  EXPECT_EQ(llama.field_of("model.rope.theta"), "rope_theta");
  EXPECT_EQ(llama.field_of("model.rope.low_frequency"), "rope_scaling.low_freq_factor");
  EXPECT_EQ(llama.field_of("model.norm"), "model_type");
  EXPECT_EQ(found(json::parse(kQwen3)).field_of("model.rope.factor"), "rope_scaling");
}

TEST_F(FamilyConfig, WhatIsNotComputedIsRefusedByName) {
  refused(kLlama32, {{"attention_bias", 1}},
          {"config.json", "\"attention_bias\"", "true or false", "found 1"});
  refused(kLlama32, {{"pretraining_tp", 2}}, {"\"pretraining_tp\" is 2"});
  refused(kLlama32, {{"partial_rotary_factor", 0.5}}, {"\"partial_rotary_factor\" is 0.5"});
  EXPECT_NO_THROW(read_with(kLlama32, {{"partial_rotary_factor", 1.0}}));
  refused(kSmolLM2, {{"rope_interleaved", true}}, {"\"rope_interleaved\" is true"});
  refused(kLlama32, {{"hidden_act", "gelu"}}, {"\"hidden_act\"", "\"silu\"", "found \"gelu\""});
  refused(kLlama32, {{"quantization_config", {{"bits", 4}}}}, {"\"quantization_config\"", "bfloat16"});
  refused(kLlama32, {{"auto_map", {{"AutoModel", "x.Y"}}}}, {"\"auto_map\""});
  refused(kLlama32, {{"sliding_window", 4096}}, {"\"sliding_window\" is 4096", "use_sliding_window"});
  refused(kLlama32, {{"use_sliding_window", true}}, {"\"use_sliding_window\" is true"});
  refused(kLlama32, {{"n_layer", 4}}, {"\"n_layer\"", "unknown"});
  refused(kLlama32, {{"logit_scale", 2.0}}, {"\"logit_scale\"", "unknown"});
  refused(kQwen25, {{"use_mrope", true}}, {"\"use_mrope\" is true"});
  refused(kQwen3, {{"mlp_bias", true}}, {"\"mlp_bias\" is true"});
  refused(kQwen3, {{"pretraining_tp", 2}}, {"\"pretraining_tp\" is 2"});
  for (const char* field : {"quantization", "compression_config", "quantization_config"})
    refused(kQwen3, {{field, {{"bits", 4}}}}, {field, "bfloat16"});
  refused(kMistral7, {{"attention_bias", true}}, {"\"attention_bias\" is true"});
  refused(kMistral7, {{"layer_types", {"sliding_attention"}}}, {"\"layer_types\" is", "full_attention"});
}

// The windows of 28 layers, as a run writes them
TEST_F(FamilyConfig, LayersOfQwenHaveTheWindowsThatTransformersGivesThem) {
  const auto windows = [&](const char* config, const json& more) {
    return text_of(read_with(config, more).window);
  };
  const json used{{"use_sliding_window", true}, {"sliding_window", 512}};
  const auto with = [&](json more) {
    more.update(used);
    return more;
  };
  for (const char* config : {kQwen25, kQwen3}) {
    const json few{{"num_hidden_layers", 6}};
    json fields = with(few);
    EXPECT_EQ(windows(config, fields), "full");  // max_window_layers is 24, or 28
    fields["max_window_layers"] = 4;
    EXPECT_EQ(windows(config, fields), "full*4,512*2");
    fields["max_window_layers"] = 0;
    EXPECT_EQ(windows(config, fields), "512");
    fields["layer_types"] = {"sliding_attention", "sliding_attention", "full_attention",
                             "sliding_attention", "sliding_attention", "full_attention"};
    EXPECT_EQ(windows(config, fields), "512*2,full") << "it says more than max_window_layers";
    fields["use_sliding_window"] = false;
    refused(config, fields, {"\"layer_types\"", "sliding_attention", "use_sliding_window", "missing"});
  }
  EXPECT_EQ(found(json::parse(kQwen3)).field_of("model.window"), "sliding_window");
  refused(kQwen3, {{"layer_types", {"full_attention", "sliding_attention"}}},
          {"\"layer_types\"", "28", "found 2"});
  refused(kQwen3, {{"layer_types", "full_attention"}}, {"\"layer_types\"", "28 layers"});
  refused(kQwen3, with({{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "chunked_attention"}}}),
          {"\"layer_types\" of layer 1", "chunked_attention", "sliding_attention"});
  refused(kQwen3, {{"use_sliding_window", true}, {"sliding_window", 0}}, {"\"sliding_window\" is 0", "null"});
  refused(kQwen3, {{"use_sliding_window", 1}}, {"\"use_sliding_window\"", "true or false"});
}

// Absent means 4,096, and null none: then it is a Llama.
TEST_F(FamilyConfig, LayersOfMistralAllHaveTheSameWindow) {
  const FoundModel mistral = found(json::parse(kMistral7));
  EXPECT_EQ(mistral.family, "mistral");
  EXPECT_EQ(mistral.field_of("model.window"), "sliding_window");
  EXPECT_TRUE(mistral.model.window.all_full());
  EXPECT_STREQ(family_of(mistral.model), "llama");
  EXPECT_EQ(mistral.model.parameters(), 7'248'023'552);
  ModelConfig expected = llama_sizes(32768, 32768, 32, 32, 8, 128, 4096, 14336);
  expected.tied = false, expected.rope.theta = 1e6;
  EXPECT_EQ(mistral.model, expected);

  expected.window = Windows(4096);
  EXPECT_EQ(read_with(kMistral7, {{"sliding_window", 4096}}), expected);
  EXPECT_STREQ(family_of(expected), "mistral");
  json absent = json::parse(kMistral7);
  absent.erase("sliding_window");
  EXPECT_EQ(read(absent), expected);
  // A window of all positions hides nothing, and is kept for a longer context.
  EXPECT_EQ(text_of(read_with(kMistral7, {{"sliding_window", 32768}}).window), "32768");

  ModelConfig defaults = llama_sizes(32000, 131072, 32, 32, 8, 128, 4096, 14336);
  defaults.norm_epsilon = 1e-6f, defaults.tied = false, defaults.window = Windows(4096);
  EXPECT_EQ(read({{"model_type", "mistral"}}), defaults);
  refused(kMistral7, {{"sliding_window", 0}}, {"\"sliding_window\" is 0", "null"});
  refused(kMistral7, {{"sliding_window", "4096"}}, {"\"sliding_window\"", "found \"4096\""});
}

TEST_F(FamilyConfig, GemmaIsReadInEveryFormOfItsFields) {
  const FoundModel gemma = found(json::parse(kGemma1b));
  ModelConfig expected = preset_model(Preset::kGemma3_1b);
  EXPECT_EQ(gemma.model.window.at(25), 512) << "the last two of 26 layers are the first of a pattern";
  EXPECT_EQ(gemma.model, expected);
  EXPECT_EQ(gemma.model.parameters(), 999'885'952);
  EXPECT_EQ(preset_model(Preset::kGemma3_270m).parameters(), 268'098'176);
  EXPECT_EQ(preset_model(Preset::kGemma3_4b).parameters(), 3'880'263'168);
  EXPECT_STREQ(family_of(expected), "gemma3_text");
  for (const Preset preset : {Preset::kGemma3_270m, Preset::kGemma3_1b, Preset::kGemma3_4b}) {
    ModelConfig model = preset_model(preset);
    const json written = json::parse(hugging_face_config(model, DType::kF32).dump());
    const ModelConfig again = read(written);
    EXPECT_EQ(canonical(again), canonical(model)) << name_of(preset);
    EXPECT_EQ(written["layer_types"].size(), static_cast<size_t>(model.layers));
    EXPECT_EQ(written["layer_types"][5], "full_attention");
    EXPECT_EQ(written["layer_types"][6], "sliding_attention");
  }

  // As transformers 5 writes it
  json fields = json::parse(kGemma1b);
  for (const char* field : {"rope_local_base_freq", "rope_scaling", "rope_theta", "sliding_window_pattern"})
    fields.erase(field);
  fields["_sliding_window_pattern"] = 6;
  fields["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  expected.rope = {.theta = 5e5, .local_theta = 2e4, .scaling = RopeScaling::kLinear, .factor = 8};
  EXPECT_EQ(read(fields), expected);
  EXPECT_EQ(found(fields).field_of("model.rope.theta"), "rope_parameters.full_attention.rope_theta");
  EXPECT_EQ(found(fields).field_of("model.rope.local_theta"), "rope_parameters.sliding_attention.rope_theta");
  fields["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  fields["rope_parameters"]["sliding_attention"]["factor"] = 2.0;
  expect_error([&] { read(fields); },
               {"rope_parameters.sliding_attention.rope_type", "must be one of \"default\"", "linear"});

  EXPECT_TRUE(read_with(kGemma1b, {{"sliding_window_pattern", 1}}).window.all_full());
  EXPECT_EQ(text_of(read_with(kGemma1b, {{"sliding_window_pattern", 2}}).window), "512,full");
  EXPECT_EQ(read_with(kGemma1b, {{"final_logit_softcapping", 30.0}}).logit_cap, 30);
  refused(kGemma1b, {{"attn_logit_softcapping", 50.0}}, {"\"attn_logit_softcapping\" is 50", "cap"});
  refused(kGemma1b, {{"use_bidirectional_attention", true}}, {"\"use_bidirectional_attention\" is true"});
  refused(kGemma1b, {{"hidden_activation", "silu"}}, {"\"hidden_activation\"", "gelu_pytorch_tanh"});
}

// gemma-3-4b-pt
constexpr const char* kGemma4b = R"({
  "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
  "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02,
  "mm_tokens_per_image": 256, "model_type": "gemma3",
  "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
  "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
  "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
    "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
    "patch_size": 14, "vision_use_head": false}})";

TEST_F(FamilyConfig, OfAGemmaWithImagesTheModelOfTextsIsRead) {
  const FoundModel gemma = found(json::parse(kGemma4b));
  const ModelConfig expected = preset_model(Preset::kGemma3_4b);
  EXPECT_NO_THROW(check_same_model(folder_, expected));
  EXPECT_EQ(canonical(gemma.model), canonical(expected));
  EXPECT_EQ(gemma.family, "gemma3_text");
  EXPECT_EQ(gemma.type, "gemma3");
  EXPECT_EQ(gemma.field_of("model.channels"), "text_config.hidden_size");
  EXPECT_EQ(gemma.field_of("model.rope.factor"), "text_config.rope_scaling.factor");
  EXPECT_EQ(gemma.field_of("model.window"), "text_config.sliding_window");
  EXPECT_EQ(json::parse(hugging_face_config(gemma.model, DType::kBF16).dump())["model_type"], "gemma3_text");
  EXPECT_EQ(found(json::parse(kGemma1b)).type, "gemma3_text");

  const auto text = [&](const json& more, std::initializer_list<std::string_view> words) {
    json fields = json::parse(kGemma4b);
    fields["text_config"].update(more);
    expect_error([&] { read(fields); }, words);
  };
  text({{"num_hidden_layers", 0}}, {"\"text_config.num_hidden_layers\"", "0"});
  text({{"use_bidirectional_attention", true}}, {"\"text_config.use_bidirectional_attention\" is true"});
  text({{"experts", 4}}, {"\"text_config.experts\" is unknown"});
  text({{"model_type", "gemma3n_text"}},
       {"\"text_config.model_type\" must be \"gemma3_text\"", "gemma3n_text"});
  text({{"tie_word_embeddings", false}}, {"\"text_config.tie_word_embeddings\" is false", "head of its own"});
  refused(kGemma4b, {{"tie_word_embeddings", false}},
          {"\"tie_word_embeddings\" is false", "head of its own"});
  refused(kGemma4b, {{"text_config", nullptr}}, {"\"text_config\" must be an object", "nothing"});
  refused(kGemma4b, {{"text_config", 7}}, {"\"text_config\" must be an object", "7"});
  refused(kGemma4b, {{"quantization_config", {{"bits", 4}}}}, {"\"quantization_config\"", "quantized"});
  refused(kGemma4b, {{"audio_config", {{"layers", 4}}}}, {"\"audio_config\" is unknown"});
  refused(kGemma1b, {{"vision_config", {{"layers", 4}}}}, {"\"vision_config\" is unknown"});
}

// No other program is to take a model with sparse blocks for one without: transformers knows no such type.
TEST_F(FamilyConfig, SparseBlocksHaveAModelTypeOfTheirOwn) {
  ModelConfig gpt2{.vocab_size = 61, .context = 64, .layers = 2, .heads = 2, .channels = 32};
  ModelConfig qwen3 = with_qwen3_parts(gpt2);
  qwen3.window = Windows({{7}, {Windows::kFull}});
  for (const auto& [model, family, text] :
       {std::tuple{gpt2, "gpt2", "window:8+global:1"}, {qwen3, "qwen3", "full,window:2+random:1+seed:7"}}) {
    ModelConfig sparse = model;
    sparse.sparse = read_sparse(text);
    EXPECT_STREQ(family_of(sparse), family) << "the weights are those of its family";
    const json written = json::parse(hugging_face_config(sparse, DType::kF32).dump());
    EXPECT_EQ(written["model_type"], fmt::format("sparse_{}", family));
    EXPECT_EQ(written["sparse_attention"], text);
    EXPECT_EQ(written["architectures"][0].get<std::string>().find("Sparse"), 0u);
    EXPECT_EQ(read(written), sparse);
    json damaged = written;
    damaged["sparse_attention"] = "windows:8";
    expect_error([&] { read(damaged); }, {"sparse_attention", "windows:8"});
    damaged.erase("sparse_attention");
    expect_error([&] { read(damaged); }, {"sparse_attention"});
    json plain = json::parse(hugging_face_config(model, DType::kF32).dump());
    plain["sparse_attention"] = text;  // unknown to its family
    expect_error([&] { read(plain); }, {"sparse_attention", "unknown"});
  }
}

// What is written is read as the same, by transformers of any age: with max_window_layers and layer_types.
TEST_F(FamilyConfig, WindowsAreWrittenAsTheyAreRead) {
  ModelConfig model = with_qwen3_parts({.vocab_size = 61,
                                        .context = 64,
                                        .layers = 6,
                                        .heads = 2,
                                        .channels = 32,
                                        .kv_heads = 1,
                                        .head_dim = 8});
  for (const Windows& windows : {Windows(), Windows(7), Windows({{Windows::kFull, 4}, {7, 2}}),
                                 Windows({{7, 2}, {Windows::kFull}}), Windows({{7, 5}, {Windows::kFull}})}) {
    model.window = windows;
    const json written = json::parse(hugging_face_config(model, DType::kF32).dump());
    EXPECT_EQ(read(written), model) << text_of(windows);
    EXPECT_EQ(written.contains("layer_types"), !windows.all_full());
  }
  model.window = Windows({{Windows::kFull, 4}, {7, 2}});
  const json written = json::parse(hugging_face_config(model, DType::kF32).dump());
  EXPECT_EQ(written["use_sliding_window"], true);
  EXPECT_EQ(written["sliding_window"], 7);
  EXPECT_EQ(written["max_window_layers"], 4);
  model.window = Windows({{7}, {9}});  // no family has windows of two lengths
  expect_error([&] { family_of(model); }, {"model.window=full"});
  model.window = Windows(7), model.rope.local_theta = 100;
  EXPECT_STREQ(family_of(model), "tessera");
  ModelConfig gpt2{.vocab_size = 61, .context = 64, .layers = 2, .heads = 2, .channels = 32};
  gpt2.window = Windows(7);
  expect_error([&] { family_of(gpt2); }, {"gpt2 has model.window=full"});
}

TEST_F(FamilyConfig, BiasesAreThoseThatTheFieldsName) {
  const auto bias_of = [&](const char* config, bool attention, bool mlp) {
    return read_with(config, {{"attention_bias", attention}, {"mlp_bias", mlp}}).bias;
  };
  EXPECT_EQ(bias_of(kLlama32, false, false), Bias::kNone);
  EXPECT_EQ(bias_of(kLlama32, true, false), Bias::kAttention);
  EXPECT_EQ(bias_of(kLlama32, false, true), Bias::kMlp);
  EXPECT_EQ(bias_of(kLlama32, true, true), Bias::kAll);
  EXPECT_EQ(found(json::parse(kLlama32)).field_of("model.bias"), "attention_bias");
  EXPECT_EQ(bias_of(kQwen3, true, false), Bias::kAttention);
  for (const bool ignored : {false, true}) EXPECT_EQ(bias_of(kQwen25, ignored, false), Bias::kQkv);
}

// What transformers, trainers and people leave in a config.json; ModelConfig stays what it is without.
TEST_F(FamilyConfig, FieldsThatChangeNothingAreIgnored) {
  const json notes{{"unsloth_version", "2025.1.1"},
                   {"unsloth_fixed", true},
                   {"unsloth_tiled_mlp", true},
                   {"axolotl_version", "0.8"},
                   {"trl_version", "0.15"},
                   {"mergekit_version", "0.1"},
                   {"_name_or_path", "a/b"},
                   {"_model_name_or_path", "a/b"},
                   {"model_name", "a/b"},
                   {"license", "apache-2.0"},
                   {"unk_token_id", 0},
                   {"pad_token_id", 0},
                   {"dtype", "bfloat16"},
                   {"torch_dtype", "bfloat16"},
                   {"_attn_implementation", "sdpa"},
                   {"_from_model_config", true},
                   {"problem_type", "single_label_classification"},
                   {"task_specific_params", {{"text", {{"max_length", 50}}}}},
                   {"auto_map", json::object()},
                   {"quantization_config", nullptr},
                   {"quantization", nullptr},
                   {"min_p", 0.1},
                   {"max_new_tokens", 20},
                   {"stop_strings", {"a"}},
                   {"cache_implementation", "static"},
                   {"max_sequence_length", 2048},
                   {"tokenizer_padding_side", "left"},
                   {"pretraining_tp", 1},
                   {"use_sliding_window", false},
                   {"sliding_window", 4096},
                   {"max_window_layers", 3}};
  for (const Published& one : published()) {
    json fields = json::parse(one.config);
    fields.update(notes);
    EXPECT_EQ(read(fields), one.model) << one.name;
  }
  EXPECT_NO_THROW(read({{"model_type", "gpt2"}, {"unsloth_fixed", true}, {"use_flash_attn", true}}));
}

TEST_F(FamilyConfig, RotaryPositionsOfOtherKindsAreRefused) {
  const auto scaled = [&](const json& scaling, std::initializer_list<std::string_view> words) {
    refused(kQwen25, {{"rope_scaling", scaling}}, words);
  };
  for (const char* type : {"dynamic", "mrope", "ntk"})
    scaled({{"rope_type", type}, {"factor", 2.0}},
           {"\"rope_scaling.rope_type\"", "found \"" + std::string(type),
            R"("default", "linear", "llama3", "yarn", "longrope", "su")"});
  scaled({{"factor", 2.0}}, {"\"rope_scaling.rope_type\" is missing"});
  scaled({{"type", "linear"}}, {"\"rope_scaling.factor\" is missing", "linear"});
  scaled({{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 2.0}},
         {"rope_scaling.rope_type is \"yarn\" and rope_scaling.type is \"linear\""});
  scaled({{"type", "linear"}, {"factor", 0}}, {"\"rope_scaling.factor\"", "above 0", "found 0"});
  scaled({{"type", "linear"}, {"factor", "2"}}, {"\"rope_scaling.factor\"", "above 0", "found \"2\""});
  scaled({{"type", "linear"}, {"factor", 2.0}, {"beta_fast", 32}},
         {"\"rope_scaling.beta_fast\" is 32", "model.rope.scaling=linear"});
  scaled({{"type", "yarn"}}, {"\"rope_scaling.factor\" is missing", "yarn"});
  scaled({{"type", "linear"}, {"factor", nullptr}}, {"\"rope_scaling.factor\" is missing", "linear"});
  scaled({{"type", "linear"}, {"factor", 2.0}, {"truncate", false}}, {"\"rope_scaling.truncate\" is false"});
  scaled({{"type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1}, {"beta_slow", 32}},
         {"beta_slow\" is 32", "beta_fast\" is 1", "larger"});
  scaled({{"rope_type", "llama3"},
          {"factor", 2.0},
          {"low_freq_factor", 4},
          {"high_freq_factor", 4},
          {"original_max_position_embeddings", 64}},
         {"low_freq_factor\" is 4", "high_freq_factor\" is 4", "larger"});
  scaled({{"rope_type", "default"}, {"mrope_section", {1, 2}}}, {"\"rope_scaling.mrope_section\" is [1,2]"});
  scaled(7, {"\"rope_scaling\"", "object", "found 7"});
  refused(kQwen25, {{"rope_theta", 0}}, {"\"rope_theta\"", "above 0", "found 0"});
  refused(kQwen25, {{"rope_theta", 1.0}}, {"\"rope_theta\"", "above 1", "found 1"});
  refused(kQwen25, {{"rope_parameters", {{"rope_theta", 10000.0}, {"rope_type", "default"}}}},
          {"rope_parameters.rope_theta is 10000.0 and rope_theta is 1000000.0"});
  refused(kLlama32, {{"rope_parameters", {{"rope_type", "default"}}}},
          {"rope_parameters and rope_scaling", "differ"});
  refused(kQwen25, {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
          {"\"rope_parameters.full_attention\" is"});
}

TEST_F(FamilyConfig, FieldsOfRotaryPositionsThatChangeNothingAreIgnored) {
  const auto scaled = [&](const json& scaling) {
    return read_with(kQwen25, {{"rope_scaling", scaling}}).rope;
  };
  const Rope plain{.theta = 1e6}, linear{.theta = 1e6, .scaling = RopeScaling::kLinear, .factor = 2};
  EXPECT_EQ(scaled({{"rope_type", "linear"},
                    {"type", nullptr},
                    {"factor", 2.0},
                    {"original_max_position_embeddings", 4096},
                    {"attention_factor", 1.0}}),
            linear);
  EXPECT_EQ(scaled({{"rope_type", nullptr}, {"type", "linear"}, {"factor", 2.0}}), linear);
  EXPECT_EQ(scaled({{"rope_type", "default"},
                    {"type", "default"},
                    {"factor", 1.0},
                    {"original_max_position_embeddings", 4096}}),
            plain);
  EXPECT_EQ(scaled({{"type", "yarn"}, {"factor", 4.0}, {"finetuned", true}}).scaling, RopeScaling::kYarn);
  refused(kQwen25, {{"rope_scaling", {{"rope_type", "default"}, {"factor", 2.0}}}},
          {"\"rope_scaling.factor\" is 2.0"});
}

TEST_F(FamilyConfig, YarnIsReadAsItIsWritten) {
  const auto yarn = [&](const json& more) {
    json scaling{{"type", "yarn"}, {"factor", 4.0}};
    scaling.update(more);
    return read_with(kQwen25, {{"rope_scaling", scaling}, {"max_position_embeddings", 131072}}).rope;
  };
  const Rope plain{.theta = 1e6, .scaling = RopeScaling::kYarn, .factor = 4, .original_context = 131072};
  EXPECT_EQ(yarn(json::object()), plain);
  const double growth = 0.1 * std::log(4.0);
  EXPECT_EQ(yarn(json::object()).attention_factor, 0);  // 0.1 ln(factor) + 1
  EXPECT_EQ(yarn({{"original_max_position_embeddings", 32768}}).original_context, 32768);
  EXPECT_EQ(yarn({{"beta_fast", 24}, {"beta_slow", 2.5}}).beta_slow, 2.5);
  EXPECT_EQ(yarn({{"attention_factor", 1.5}, {"truncate", true}}).attention_factor, 1.5);
  EXPECT_DOUBLE_EQ(yarn({{"mscale", 0.5}, {"mscale_all_dim", 2}}).attention_factor,
                   (0.5 * growth + 1) / (2 * growth + 1));
  EXPECT_EQ(yarn({{"mscale", 1}, {"mscale_all_dim", 0}}).attention_factor, 0);
  EXPECT_EQ(yarn({{"mscale", 1}, {"mscale_all_dim", 2}, {"attention_factor", 1.5}}).attention_factor, 1.5);

  const auto notices = [&] { return read_model_config(folder_).notices; };
  yarn({{"original_max_position_embeddings", 32768}});
  EXPECT_TRUE(notices().empty());
  yarn({{"original_max_position_embeddings", 65536}});
  ASSERT_EQ(notices().size(), 1u);
  EXPECT_NE(notices()[0].find("factor is 4, as \"rope_scaling.factor\""), std::string::npos);
  EXPECT_NE(notices()[0].find("= 2 instead"), std::string::npos);
}

// What transformers 5 computes where fields are null or absent
TEST_F(FamilyConfig, ScalingsThatLeaveFieldsOut) {
  const auto scaled = [&](const json& scaling) {
    return read_with(kQwen25, {{"rope_scaling", scaling}, {"max_position_embeddings", 131072}});
  };
  const json yarn{{"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(scaled(yarn).rope.factor, 4);
  EXPECT_TRUE(read_model_config(folder_).notices.empty());
  EXPECT_EQ(scaled({{"type", "yarn"}, {"factor", nullptr}}).rope.factor, 1);
  for (const json& truncate : {json(false), json()}) {
    json fields = yarn;
    fields["truncate"] = truncate;
    const ModelConfig model = scaled(fields);
    EXPECT_FALSE(model.rope.truncate);
    const json written = json::parse(hugging_face_config(model, DType::kF32).dump());
    EXPECT_EQ(written["rope_scaling"]["truncate"], false);
    EXPECT_EQ(canonical(read(written)), canonical(model));
  }
  const json plain = json::parse(hugging_face_config(scaled(yarn), DType::kF32).dump());
  EXPECT_FALSE(plain["rope_scaling"].contains("truncate"));
  // With angles by kind of layer transformers does not read it.
  refused(kGemma1b, {{"rope_scaling", {{"type", "yarn"}, {"factor", 2.0}, {"truncate", false}}}},
          {"\"rope_scaling.truncate\" is false", "Gemma 3"});
  const Rope llama3 =
      scaled({{"rope_type", "llama3"}, {"factor", 2.0}, {"low_freq_factor", 1}, {"high_freq_factor", 4}})
          .rope;
  EXPECT_EQ(llama3.original_context, 131072);
}

TEST_F(FamilyConfig, APatternOfWindowsEndsWithTheModel) {
  const ModelConfig model = read_with(kGemma1b, {{"num_hidden_layers", 2}});
  EXPECT_EQ(text_of(model.window), "512");
  EXPECT_EQ(read(json::parse(hugging_face_config(model, DType::kF32).dump())), model);
  EXPECT_EQ(text_of(read_with(kGemma1b, {{"num_hidden_layers", 5}}).window), "512");
  EXPECT_EQ(text_of(read_with(kGemma1b, {{"num_hidden_layers", 6}}).window), "512*5,full");
  EXPECT_EQ(text_of(read_with(kGemma1b, {{"sliding_window_pattern", 900'000'000}}).window), "512");
}

TEST_F(FamilyConfig, SizesAreCheckedBeforeTheyAreUsed) {
  const auto too_large = [&](const char* config, const char* field, int64_t size, const char* most) {
    refused(config, {{field, size}}, {"config.json", field, fmt::format("{}", size), most});
  };
  too_large(kGemma1b, "num_hidden_layers", 1'000'000, "at most 10000");
  too_large(kLlama32, "num_hidden_layers", 10'001, "at most 10000");
  too_large(kLlama32, "max_position_embeddings", 900'000'000, "at most 10000000");
  too_large(kLlama32, "intermediate_size", 900'000'000, "at most 4000000");
  too_large(kLlama32, "hidden_size", 32'000'000, "at most 1000000");
  too_large(kLlama32, "head_dim", 900'000'000, "at most 65536");
  refused(kLlama32, {{"head_dim", 65'536}, {"num_attention_heads", 100'000}},
          {"num_attention_heads", "4000000"});
  refused(R"({"model_type":"gpt2"})", {{"n_layer", 1'000'000}}, {"n_layer is 1000000", "at most 10000"});
}

TEST_F(FamilyConfig, UnknownFieldsAreIgnoredByName) {
  const auto read_ignoring = [&](const char* config, const json& more,
                                 const std::vector<std::string>& ignored) {
    json fields = json::parse(config);
    fields.update(more);
    write_fields(folder_, fields);
    return read_model_config(folder_, ignored).model;
  };
  const json unknown{{"neftune_noise_alpha", 5}};
  refused(
      kLlama32, unknown,
      {"\"neftune_noise_alpha\" is unknown", "--ignore-field neftune_noise_alpha", "train.ignore_fields"});
  EXPECT_EQ(read_ignoring(kLlama32, unknown, {"neftune_noise_alpha"}), read(json::parse(kLlama32)));
  expect_error([&] { read_ignoring(kLlama32, unknown, {"neftune"}); }, {"neftune_noise_alpha"});
  // Within other objects by their whole names
  json scaling = json::parse(kLlama32)["rope_scaling"];
  scaling["note"] = 1;
  expect_error(
      [&] {
        read_ignoring(kLlama32, {{"rope_scaling", scaling}}, {"note"});
      },
      {"--ignore-field rope_scaling.note"});
  EXPECT_NO_THROW(read_ignoring(kLlama32, {{"rope_scaling", scaling}}, {"rope_scaling.note"}));
  // What the reader knows is never ignored, whether it is used or refused.
  for (const auto& [field, value] :
       {std::pair("rope_theta", json(10000.0)), std::pair("num_hidden_layers", json(2)),
        std::pair("quantization_config", json{{"bits", 4}}), std::pair("pretraining_tp", json(2)),
        std::pair("sliding_window", json(4))})
    expect_error([&] { read_ignoring(kLlama32, {{field, value}}, {field}); }, {field, "is known"});
}

// The fields of longrope of a Phi-4 mini with heads of 16 channels, of which 12 are rotated
json with_longrope(const json& scaling) {
  return {{"model_type", "phi3"},
          {"vocab_size", 64},
          {"hidden_size", 64},
          {"num_attention_heads", 4},
          {"max_position_embeddings", 131072},
          {"original_max_position_embeddings", 4096},
          {"partial_rotary_factor", 0.75},
          {"rope_scaling", scaling}};
}
const json kShortFactors{1, 1, 1.25, 1.5, 2, 2}, kLongFactors{1, 1.5, 2.5, 8, 20, 30.5};

TEST_F(FamilyConfig, LongropeIsReadAsPhiWritesIt) {
  const json published{{"long_factor", kLongFactors}, {"short_factor", kShortFactors}, {"type", "longrope"}};
  const Rope rope = read(with_longrope(published)).rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kLongrope);
  EXPECT_EQ(rope.original_context, 4096);
  EXPECT_EQ(rope.share, 0.75);
  EXPECT_EQ(rope.short_factors, (std::vector<double>{1, 1, 1.25, 1.5, 2, 2}));
  EXPECT_EQ(rope.long_factors, (std::vector<double>{1, 1.5, 2.5, 8, 20, 30.5}));
  EXPECT_NEAR(rope.attention_factor, std::sqrt(1 + 5.0 / 12), 1e-15);  // 32 x 4096 positions

  const auto with = [&](const json& more) {
    json scaling = published;
    scaling.update(more);
    return read(with_longrope(scaling)).rope;
  };
  EXPECT_EQ(with({{"type", "su"}}), rope);
  EXPECT_EQ(with({{"original_max_position_embeddings", 4096}, {"factor", 32.0}}), rope);
  EXPECT_NEAR(with({{"factor", 16.0}}).attention_factor, std::sqrt(1 + 4.0 / 12), 1e-15);
  EXPECT_EQ(with({{"factor", 16.0}, {"attention_factor", 1.25}}).attention_factor, 1.25);
  EXPECT_EQ(with({{"factor", 1.0}}).attention_factor, 1);

  json five = with_longrope(nullptr);  // transformers 5
  five.erase("partial_rotary_factor");
  five["rope_parameters"] = published;
  five["rope_parameters"].update({{"rope_type", "longrope"},
                                  {"rope_theta", 1e4},
                                  {"partial_rotary_factor", 0.75},
                                  {"original_max_position_embeddings", 4096}});
  EXPECT_EQ(read(five).rope, rope);
  EXPECT_EQ(found(five).field_of("model.rope.long_factors"), "rope_parameters.long_factor");

  json llama = with_longrope(published);
  llama["model_type"] = "llama", llama["head_dim"] = 12;
  llama.erase("partial_rotary_factor");
  EXPECT_EQ(read(llama).rope.long_factors, rope.long_factors);
  llama.erase("original_max_position_embeddings");
  EXPECT_EQ(read(llama).rope.original_context, 131072);
  llama["rope_scaling"]["original_max_position_embeddings"] = 1024;
  EXPECT_EQ(read(llama).rope.original_context, 1024);
}

// microsoft/Phi-4-mini-instruct
TEST_F(FamilyConfig, APhi4MiniIsItsPreset) {
  const ModelConfig expected = preset_model(Preset::kPhi4Mini);
  json fields = json::parse(R"({
    "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 199999, "embd_pdrop": 0.0,
    "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "original_max_position_embeddings": 4096,
    "pad_token_id": 199999, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 200064})");
  fields["rope_scaling"] = {{"long_factor", expected.rope.long_factors},
                            {"short_factor", expected.rope.short_factors},
                            {"type", "longrope"}};
  EXPECT_EQ(read(fields), expected);
  EXPECT_EQ(expected.parameters(), 3'836'021'760);
  EXPECT_EQ(expected.rope.long_factors.size(), 48u);
  EXPECT_STREQ(family_of(expected), "phi3");
  EXPECT_EQ(canonical(expected).rope, expected.rope);
  const auto refuse = [&](const json& more, std::initializer_list<std::string_view> words) {
    json changed = fields;
    changed.update(more);
    expect_error([&] { read(changed); }, words);
  };
  refuse({{"full_attn_mod", 2}}, {"\"full_attn_mod\" is 2"});
  refuse({{"interpolate_factor", 4}}, {"\"interpolate_factor\" is 4"});
  refuse({{"lm_head_bias", true}}, {"\"lm_head_bias\" is true"});
  refuse({{"mlp_bias", true}}, {"\"mlp_bias\" is true"});
}

// The files of Qwen3-30B-A3B, OLMoE-1B-7B-0924, Mixtral-8x7B-v0.1 and gpt-oss-20b, whose weights are in bf16
TEST_F(FamilyConfig, PublishedModelsWithExpertsAreTheirPresets) {
  const std::pair<Preset, const char*> kPublished[] = {{Preset::kQwen3_30bA3b, R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
  "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
  "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})"},
                                                       {Preset::kOlmoe_1b7b, R"({
  "architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "clip_qkv": null, "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 1024, "max_position_embeddings": 4096,
  "model_type": "olmoe", "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64,
  "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
  "output_router_logits": false, "pad_token_id": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": true,
  "vocab_size": 50304})"},
                                                       {Preset::kMixtral8x7b, R"({
  "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
  "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
  "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true,
  "vocab_size": 32000})"},
                                                       {Preset::kQwen15_moeA27b, R"({
  "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
  "model_type": "qwen2_moe", "num_attention_heads": 16, "num_hidden_layers": 24,
  "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936, "decoder_sparse_step": 1,
  "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
  "num_experts": 60, "norm_topk_prob": false, "output_router_logits": false,
  "router_aux_loss_coef": 0.001})"},
                                                       {Preset::kGranite3_1bA400m, R"({
  "architectures": ["GraniteMoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
  "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 512,
  "logits_scaling": 6.0, "max_position_embeddings": 4096, "model_type": "granitemoe",
  "num_attention_heads": 16, "num_experts_per_tok": 8, "num_hidden_layers": 24,
  "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 0,
  "residual_multiplier": 0.22, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000,
  "router_aux_loss_coef": 0.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.46.0.dev0", "use_cache": true, "vocab_size": 49155})"},
                                                       {Preset::kGptOss_20b, R"({
  "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
  "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
  "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
  "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention",
  "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
  "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention",
  "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
  "full_attention"], "max_position_embeddings": 131072, "model_type": "gpt_oss",
  "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
  "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
  "pad_token_id": 199999, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0,
  "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
  "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
  "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true,
  "vocab_size": 201088})"}};
  for (const auto& [preset, text] : kPublished) {
    write("config.json", text);
    EXPECT_EQ(read_model_config(folder_).model, preset_model(preset)) << name_of(preset);
    json config = json::parse(text);
    const auto refused = [&](const char* field, const json& value) {
      json changed = config;
      changed[field] = value;
      write("config.json", changed.dump());
      expect_error([&] { read_model_config(folder_); }, {field});
    };
    if (preset == Preset::kMixtral8x7b) refused("router_jitter_noise", 0.1);
    if (preset == Preset::kOlmoe_1b7b) refused("clip_qkv", 8.0);
    if (preset == Preset::kGptOss_20b)
      refused("swiglu_limit", 6.0), refused("swiglu_alpha", 1.5), refused("attention_bias", false);
    if (preset == Preset::kQwen3_30bA3b) refused("mlp_only_layers", "1");
    if (preset == Preset::kGranite3_1bA400m) refused("attention_multiplier", 0.0156);
    if (preset == Preset::kQwen15_moeA27b)
      refused("qkv_bias", false);
    else
      refused("shared_expert_intermediate_size", 512);  // of another family, and so unknown
  }
}

// As transformers: windows in turn, and YaRN, which a model without scaled angles has to deny.
TEST_F(FamilyConfig, AGptOssHasWindowsAndAnglesOfItsFamilyWhereItsFileNamesNone) {
  json fields{{"model_type", "gpt_oss"}, {"num_hidden_layers", 24}, {"num_local_experts", 32}};
  EXPECT_EQ(read(fields), preset_model(Preset::kGptOss_20b));
  fields["rope_scaling"] = nullptr;
  EXPECT_EQ(read(fields), preset_model(Preset::kGptOss_20b));
  fields["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  fields["sliding_window"] = 64, fields["num_hidden_layers"] = 3;
  const ModelConfig plain = read(fields);
  EXPECT_EQ(plain.rope, (Rope{.theta = 1e4}));
  EXPECT_EQ(plain.window.at(0), 64);
  EXPECT_EQ(plain.window.at(1), Windows::kFull);
  EXPECT_EQ(plain.window.at(2), 64);
  const json written = json::parse(hugging_face_config(plain, DType::kF32).dump());
  EXPECT_EQ(written["rope_scaling"], (json{{"rope_type", "default"}}));
  EXPECT_EQ(read(written), plain);
  fields["sliding_window_pattern"] = 3;  // Gemma's
  expect_error([&] { read(fields); }, {"sliding_window_pattern"});
}

TEST_F(FamilyConfig, LongropeIsWrittenAsPhiWritesIt) {
  json fields =
      with_longrope({{"type", "longrope"}, {"long_factor", kLongFactors}, {"short_factor", kShortFactors}});
  const ModelConfig model = read(fields);
  json written = json::parse(hugging_face_config(model, DType::kF32).dump());
  EXPECT_EQ(written["model_type"], "phi3");
  EXPECT_EQ(written["rope_scaling"], fields["rope_scaling"]);
  EXPECT_EQ(written["original_max_position_embeddings"], 4096);
  EXPECT_EQ(read(written), model);

  ModelConfig shorter = model;  // whose scores keep the factor that they were trained with
  shorter.context = 8192;
  written = json::parse(hugging_face_config(shorter, DType::kF32).dump());
  EXPECT_EQ(written["rope_scaling"]["attention_factor"], model.rope.attention_factor);
  EXPECT_EQ(read(written), shorter);
}

TEST_F(FamilyConfig, LongropeThatDoesNotFitIsRefused) {
  const auto refuse = [&](const json& more, std::initializer_list<std::string_view> words) {
    json scaling{{"type", "longrope"}, {"long_factor", kLongFactors}, {"short_factor", kShortFactors}};
    scaling.update(more);
    expect_error([&] { read(with_longrope(scaling)); }, words);
  };
  refuse({{"long_factor", {1, 2, 3}}},
         {"\"rope_scaling.long_factor\" has 3 numbers", "expected 6", "rotated"});
  refuse({{"short_factor", json(std::vector<int>(8, 1))}},
         {"\"rope_scaling.short_factor\" has 8 numbers", "expected 6"});
  refuse({{"long_factor", nullptr}}, {"\"rope_scaling.long_factor\" is missing", "longrope"});
  refuse({{"long_factor", 4}}, {"\"rope_scaling.long_factor\" must be a list of numbers", "found 4"});
  refuse({{"long_factor", json::array()}}, {"\"rope_scaling.long_factor\" must be a list", "found []"});
  refuse({{"short_factor", {1, 1, 0, 1, 1, 1}}}, {"\"rope_scaling.short_factor[2]\"", "above 0", "found 0"});
  refuse({{"short_factor", {1, 1, 1, "a", 1, 1}}}, {"\"rope_scaling.short_factor[3]\"", "found \"a\""});
  refuse(
      {{"original_max_position_embeddings", 8192}},
      {"rope_scaling.original_max_position_embeddings is 8192", "original_max_position_embeddings is 4096"});
  refuse({{"long_mscale", 1.25}}, {"\"rope_scaling.long_mscale\" is 1.25", "longrope"});
  json fields = with_longrope({{"type", "longrope"},
                               {"long_factor", kLongFactors},
                               {"short_factor", kShortFactors},
                               {"original_max_position_embeddings", 2048}});
  fields.erase("original_max_position_embeddings");
  expect_error([&] { read(fields); }, {"is 2048", "is 4096 where it is absent"});
  fields["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(read(fields).rope.original_context, 4096);
  fields["original_max_position_embeddings"] = 1;
  expect_error([&] { read(fields); }, {"\"original_max_position_embeddings\" must be at least 2", "found 1"});
}

TEST_F(FamilyConfig, DropoutOfAttentionIsReadAndNoticed) {
  for (const char* family : {kLlama32, kQwen25, kQwen3}) {
    json fields = json::parse(family);
    fields["attention_dropout"] = 0.1;
    const ModelConfig model = read(fields);
    EXPECT_EQ(model.dropout, DropoutConfig{.attention = 0.1});
    EXPECT_EQ(found(fields).field_of("model.dropout.attention"), "attention_dropout");
    EXPECT_NE(check_same_model(folder_, model).notices.at(0).find("has dropout (attention_dropout 0.1)"),
              std::string::npos);
    EXPECT_EQ(json::parse(hugging_face_config(model, DType::kF32).dump())["attention_dropout"], 0.1);
  }
}

TEST_F(FamilyConfig, HeadsDivideTheChannelsUnlessTheyHaveASize) {
  json fields = json::parse(kQwen25);
  fields["num_attention_heads"] = 10;
  expect_error([&] { read(fields); }, {"config.json: num_attention_heads is 10", "hidden_size 896"});
  fields["head_dim"] = 64;
  EXPECT_EQ(read(fields).attention_width(), 640);
}

// ---- what is written ----

TEST_F(FamilyConfig, WhatIsWrittenReadsBackTheSame) {
  for (const FamilyModel& one : family_models())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const json fields = json::parse(hugging_face_config(one.model, dtype).dump());
      EXPECT_EQ(fields["model_type"], one.family);
      EXPECT_EQ(fields["torch_dtype"], dtype == DType::kF32 ? "float32" : "bfloat16");
      EXPECT_EQ(read(fields), one.model) << one.name << fields.dump(2);
      EXPECT_TRUE(found(fields).family == one.family && found(fields).notices.empty()) << one.name;
      EXPECT_NO_THROW(check_same_model(folder_, one.model)) << one.name;
      EXPECT_STREQ(family_of(one.model), one.family.c_str());
    }
  const json llama = json::parse(hugging_face_config(family_models()[5].model, DType::kF32).dump());
  EXPECT_EQ(llama["architectures"], json({"LlamaForCausalLM"}));
  EXPECT_EQ(llama["rope_scaling"],
            json::parse(R"({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.5,
    "high_freq_factor": 5.0, "original_max_position_embeddings": 8})"));
}

// Where a field is of a part that no family of transformers has beside the others
TEST_F(FamilyConfig, AModelOfOurOwnIsWrittenByTheFieldsOfItsParts) {
  const ModelConfig race = with_race_parts(family_models()[1].model);
  const json written = json::parse(hugging_face_config(race, DType::kF32).dump());
  EXPECT_EQ(written["model_type"], "tessera");
  EXPECT_EQ(written["hidden_act"], "relu2");
  EXPECT_EQ(written["partial_rotary_factor"], 0.5);
  EXPECT_EQ(written["final_logit_softcapping"], 15.0);
  EXPECT_EQ(written["use_qk_norm"], true);
  const auto with = [&](const json& more) {
    json fields = written;
    fields.update(more);
    return read(fields);
  };
  EXPECT_EQ(with({{"final_logit_softcapping", nullptr}}).logit_cap, 0);
  EXPECT_EQ(with({{"partial_rotary_factor", nullptr}}).rope.share, 1);
  EXPECT_EQ(with({{"partial_rotary_factor", 0.25}}).rotated_channels(), 2);
  json within = written;
  within.erase("partial_rotary_factor");
  within.erase("rope_theta");
  within["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 500.0}, {"partial_rotary_factor", 0.75}};
  EXPECT_EQ(read(within).rope.share, 0.75);
  EXPECT_EQ(found(within).field_of("model.rope.share"), "rope_parameters.partial_rotary_factor");
  within["partial_rotary_factor"] = 0.5;
  expect_error([&] { read(within); },
               {"rope_parameters.partial_rotary_factor is 0.75", "0.5", "same setting"});
  for (const double share : {0.4, 1.5, 0.01})  // 3 of 8 channels, 12, none
    expect_error(
        [&] {
          with({{"partial_rotary_factor", share}});
        },
        {"\"partial_rotary_factor\" is", "of a head's 8 channels", "an even number"});
  expect_error([&] { with({{"hidden_act", "gelu"}}); }, {"\"hidden_act\" must be one of", "\"relu2\""});
}

// A family of transformers comes first: the same parts without those of our own
TEST_F(FamilyConfig, OurOwnFamilyHasOnlyWhatNoOtherHas) {
  ModelConfig model = with_race_parts(family_models()[1].model);
  model.mlp = Mlp::kSwiglu, model.bias = Bias::kNone, model.rope.share = 1;
  EXPECT_STREQ(family_of(model), "tessera");
  model.logit_cap = 0;
  EXPECT_STREQ(family_of(model), "qwen3");
  model.rope.share = 0.5;
  EXPECT_STREQ(family_of(model), "tessera");
  model.qk_norm = QkNorm::kNone;
  EXPECT_STREQ(family_of(model), "phi3");
  model.rope.scaling = RopeScaling::kLinear, model.rope.factor = 2;  // which Phi-3 has not
  EXPECT_STREQ(family_of(model), "tessera");
}

constexpr const char* kPhi4 = R"({
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265, "hidden_act": "silu",
  "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17920,
  "max_position_embeddings": 16384, "model_type": "phi3", "num_attention_heads": 40,
  "num_hidden_layers": 40, "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
  "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 250000, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.47.0", "use_cache": true, "vocab_size": 100352})";

// OLMo-2-1124-7B
constexpr const char* kOlmo27b = R"({
  "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false,
  "torch_dtype": "float32", "transformers_version": "4.47.0", "use_cache": true, "vocab_size": 100352})";

TEST_F(FamilyConfig, AnOlmo2HasItsNormsElsewhere) {
  const FoundModel olmo = found(json::parse(kOlmo27b));
  EXPECT_EQ(olmo.model, preset_model(Preset::kOlmo2_7b));
  EXPECT_STREQ(family_of(olmo.model), "olmo2");
  const ModelConfig absent = read({{"model_type", "olmo2"}});
  EXPECT_EQ(absent.vocab_size, 50304);
  EXPECT_EQ(absent.norm_epsilon, 1e-5f);
  EXPECT_EQ(absent.qk_norm, QkNorm::kAllHeads);
  EXPECT_EQ(read_with(kOlmo27b, {{"attention_bias", true}}).bias, Bias::kAttention);
  const json scaled = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(read_with(kOlmo27b, {{"rope_scaling", scaled}}).rope.factor, 4);
  refused(kOlmo27b, {{"clip_qkv", 8.0}}, {"\"clip_qkv\" is 8", "not supported"});
  refused(kOlmo27b, {{"sliding_window", 4096}}, {"\"sliding_window\" is 4096", "no windows"});
  refused(kOlmo27b, {{"hidden_act", "gelu"}}, {"\"hidden_act\"", "silu"});
  // Its parts in another combination are a model of Tessera's own.
  ModelConfig model = olmo.model;
  model.norm_place = NormPlace::kBoth;
  EXPECT_STREQ(family_of(model), "tessera");
  const json written = json::parse(hugging_face_config(model, DType::kF32).dump());
  EXPECT_EQ(written["use_qk_norm"], "all_heads");
  EXPECT_EQ(read(written), model);
  expect_error(
      [&] {
        json other = written;
        other["use_qk_norm"] = "some_heads";
        read(other);
      },
      {"\"use_qk_norm\" must be one of \"false\", \"true\", \"all_heads\"", "some_heads"});
}

// gemma-2-2b
constexpr const char* kGemma2_2b = R"({
  "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
  "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
  "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
  "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
  "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": true, "vocab_size": 256000})";

TEST_F(FamilyConfig, Gemma2HasCapsAndWindowsInTurn) {
  const FoundModel gemma = found(json::parse(kGemma2_2b));
  EXPECT_EQ(gemma.model, preset_model(Preset::kGemma2_2b));
  EXPECT_STREQ(family_of(gemma.model), "gemma2");
  EXPECT_EQ(text_of(gemma.model.window), "4096,full");
  EXPECT_EQ(read({{"model_type", "gemma2"}}).attention_cap, 50);
  EXPECT_EQ(read_with(kGemma2_2b, {{"attn_logit_softcapping", nullptr}}).attention_cap, 0);
  EXPECT_EQ(read_with(kGemma2_2b, {{"final_logit_softcapping", nullptr}}).logit_cap, 0);
  refused(kGemma2_2b, {{"use_bidirectional_attention", true}}, {"\"use_bidirectional_attention\" is true"});
}

// bloom-560m
constexpr const char* kBloom560m = R"({
  "apply_residual_connection_post_layernorm": false, "architectures": ["BloomForCausalLM"],
  "attention_dropout": 0.0, "attention_softmax_in_fp32": true, "bias_dropout_fusion": true,
  "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": true, "model_type": "bloom", "n_embed": 1024,
  "n_inner": null, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3,
  "pretraining_tp": 1, "seq_length": 2048, "skip_bias_add": true, "skip_bias_add_qkv": false,
  "transformers_version": "4.20.0", "unk_token_id": 0, "use_cache": true, "vocab_size": 250880})";

TEST_F(FamilyConfig, BloomHasAlibiAndANormOfItsEmbeddings) {
  const FoundModel bloom = found(json::parse(kBloom560m));
  EXPECT_EQ(bloom.model, preset_model(Preset::kBloom_560m));
  EXPECT_EQ(bloom.model.positions, Positions::kAlibi);
  EXPECT_TRUE(bloom.model.norm_embeddings);
  EXPECT_STREQ(family_of(bloom.model), "bloom");
  EXPECT_EQ(read({{"model_type", "bloom"}}).channels, 64);
  EXPECT_EQ(read_with(kBloom560m, {{"hidden_dropout", 0.1}}).dropout.residual, 0.1);
  EXPECT_FALSE(read_with(kBloom560m, {{"tie_word_embeddings", false}}).tied);
  refused(kBloom560m, {{"apply_residual_connection_post_layernorm", true}},
          {"\"apply_residual_connection_post_layernorm\" is true", "not supported"});
  // With sinks it is a model of no family: that of Tessera is a Llama with other parts.
  ModelConfig model = bloom.model;
  model.attention_sinks = true;
  expect_error([&] { family_of(model); }, {"attention_sinks"});
}

// With all channels rotated it is a Llama in other words, and written as one.
TEST_F(FamilyConfig, APhi3IsALlamaInOtherWords) {
  const FoundModel phi = found(json::parse(kPhi4));
  ModelConfig model = llama_sizes(100352, 16384, 40, 40, 10, 128, 5120, 17920);
  model.rope.theta = 250000, model.tied = false;
  EXPECT_EQ(phi.model, model);
  EXPECT_EQ(phi.family, "phi3");
  EXPECT_EQ(phi.model.parameters(), 14'659'507'200);
  EXPECT_STREQ(family_of(phi.model), "llama");
  EXPECT_EQ(read({{"model_type", "phi3"}}).mlp_width, 8192);
  EXPECT_EQ(read_with(kPhi4, {{"resid_pdrop", 0.1}}).dropout.residual, 0.1);
  EXPECT_EQ(read_with(kPhi4, {{"embd_pdrop", 0.1}}).dropout.embedding, 0);
  EXPECT_EQ(read_with(kPhi4, {{"partial_rotary_factor", 0.75}}).rotated_channels(), 96);
  json five = json::parse(kPhi4);
  five.erase("rope_theta");
  five["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 250000.0}, {"partial_rotary_factor", 0.75}};
  EXPECT_EQ(read(five).rope.share, 0.75);
}

TEST_F(FamilyConfig, WindowsOfPhi3) {
  EXPECT_TRUE(read({{"model_type", "phi3"}}).window.all_full());
  for (const int64_t window : {2047, 262144}) {
    ModelConfig model = read_with(kPhi4, {{"sliding_window", window}});
    EXPECT_EQ(model.window, Windows(window));
    EXPECT_STREQ(family_of(model), "mistral");
    model.rope.share = 0.75;
    const json written = json::parse(hugging_face_config(model, DType::kF32).dump());
    EXPECT_EQ(written["model_type"], "phi3");
    EXPECT_EQ(written["sliding_window"], window);
    EXPECT_EQ(read(written), model);
  }
}

TEST_F(FamilyConfig, WhatOfPhi3IsNotComputedIsRefused) {
  refused(kPhi4, {{"sliding_window", 0}}, {"\"sliding_window\" is 0", "null"});
  refused(kPhi4, {{"layer_types", {"sliding_attention"}}}, {"\"layer_types\" is", "full_attention"});
  for (const char* type : {"llama3", "yarn", "linear"})
    refused(kPhi4, {{"rope_scaling", {{"type", type}, {"factor", 4.0}}}},
            {"\"rope_scaling.rope_type\" must be one of \"default\", \"longrope\", \"su\", found", type});
  refused(kPhi4, {{"hidden_act", "gelu"}}, {"\"hidden_act\"", "silu"});
}

// A run of GPT-2 is continued by programs that know these bytes.
TEST_F(FamilyConfig, GPT2IsWrittenAsBefore) {
  EXPECT_EQ(hugging_face_config(family_models()[0].model, DType::kF32).dump(),
            R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":61,"n_positions":32,)"
            R"("n_layer":2,"n_head":2,"n_embd":32,"n_inner":128,"activation_function":"gelu_new",)"
            R"("layer_norm_epsilon":1e-05,"tie_word_embeddings":true,"scale_attn_weights":true,)"
            R"("scale_attn_by_inverse_layer_idx":false,"n_ctx":32,"attn_pdrop":0.0,"embd_pdrop":0.0,)"
            R"("resid_pdrop":0.0,"bos_token_id":60,"eos_token_id":60,"torch_dtype":"float32"})");
}

// Else transformers would train all rows of the table but that of its default padding token.
TEST_F(FamilyConfig, NoTokenOfOursIsForPadding) {
  for (const FamilyModel& family : family_models()) {
    const json config = hugging_face_config(family.model, DType::kF32);
    const std::string name = config["model_type"];
    const bool pads =
        name == "gemma2" || name == "gemma3_text" || name == "phi3" || name == "olmo2" || name == "olmoe";
    EXPECT_EQ(config.contains("pad_token_id"), pads) << name;
    EXPECT_TRUE(!pads || config["pad_token_id"].is_null()) << name;
  }
}

TEST_F(FamilyConfig, AModelOfNoFamilyIsRefusedWithTheKeysToChange) {
  const std::vector<FamilyModel> all = family_models();
  const ModelConfig gpt2 = all[0].model, llama = all[1].model;
  const auto refused_with = [](ModelConfig model, const auto& change,
                               std::initializer_list<std::string_view> words) {
    change(model);
    expect_error([&] { family_of(model); }, words);
    expect_error([&] { hugging_face_config(model, DType::kF32); }, words);
  };
  refused_with(llama, [](ModelConfig& m) { m.norm = NormKind::kLayerNorm; },
               {"llama has model.norm=rmsnorm"});
  refused_with(all[8].model, [](ModelConfig& m) { m.scale_attention = false; },
               {"qwen3 has model.scale_attention=true"});
  refused_with(llama, [](ModelConfig& m) { m.qk_norm = QkNorm::kHeads, m.bias = Bias::kQkv; },
               {"qwen2 has model.qk_norm=false", "qwen3 has model.bias=none"});
  refused_with(llama, [](ModelConfig& m) { m.mlp = Mlp::kGelu; }, {"llama has model.mlp=swiglu"});
  refused_with(gpt2, [](ModelConfig& m) { m.positions = Positions::kRope; },
               {"gpt2 has model.positions=learned"});
  refused_with(gpt2, [](ModelConfig& m) { m.kv_heads = 1; }, {"gpt2 has model.kv_heads=2"});
  refused_with(gpt2, [](ModelConfig& m) { m.head_dim = 8; }, {"gpt2 has model.head_dim=16"});
  refused_with(gpt2, [](ModelConfig& m) { m.mlp = Mlp::kSwiglu; }, {"gpt2 has model.mlp=gelu"});
}

TEST_F(FamilyConfig, AnotherModelIsRefusedInEveryMember) {
  const std::vector<FamilyModel> all = family_models();
  for (const FamilyModel& theirs : all)
    for (const FamilyModel& ours : all) {
      write_fields(folder_, json::parse(hugging_face_config(theirs.model, DType::kF32).dump()));
      if (theirs.name == ours.name) {
        EXPECT_NO_THROW(check_same_model(folder_, ours.model));
        continue;
      }
      expect_error([&] { check_same_model(folder_, ours.model); },
                   {folder_.string(), "another model", " has model."});
    }
  write_fields(folder_, json::parse(hugging_face_config(all[1].model, DType::kF32).dump()));
  expect_error([&] { check_same_model(folder_, all[8].model); },
               {"num_key_value_heads is 2", "model.kv_heads=1", "model_type is llama (model.qk_norm=false)",
                "model.qk_norm=true"});
}

// No weight depends on the context where positions are rotary, unless the angles do.
TEST_F(FamilyConfig, TheContextMayDifferWithRotaryPositions) {
  for (const FamilyModel& one : family_models()) {
    write_fields(folder_, json::parse(hugging_face_config(one.model, DType::kF32).dump()));
    for (const int64_t context : {16, 64}) {
      ModelConfig other = one.model;
      other.context = context;
      if (one.family == "gpt2")
        expect_error([&] { check_same_model(folder_, other); }, {"its n_positions is 32"});
      else
        EXPECT_NO_THROW(check_same_model(folder_, other)) << one.name;
      other.rope.original_context = 0;  // that of the model
      if (one.model.rope.original_context > 0)
        expect_error([&] { check_same_model(folder_, other); },
                     {"rope_scaling.original_max_position_embeddings is 8", "model.rope.original_context="});
    }
  }
}

// Members that the model does not use are in no config.json, and cannot make a difference.
TEST_F(FamilyConfig, MembersWithoutEffectDoNotDiffer) {
  for (FamilyModel one : family_models()) {
    write_fields(folder_, json::parse(hugging_face_config(one.model, DType::kF32).dump()));
    Rope& rope = one.model.rope;
    if (rope.scaling != RopeScaling::kLlama3) rope.low_frequency = 2;
    if (rope.scaling != RopeScaling::kYarn) rope.beta_slow = 3;
    if (rope.scaling == RopeScaling::kNone) rope.factor = 7;
    EXPECT_NO_THROW(check_same_model(folder_, one.model)) << one.name;
  }
}

}  // namespace
}  // namespace tessera::testing

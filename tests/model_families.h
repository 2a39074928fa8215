// Small models of every family, one for each thing that sets them apart.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace tessera::testing {

struct FamilyModel {
  std::string name, family;
  ModelConfig model;
};

// A model of these sizes with the parts of a Llama, and a head that is not tied
inline ModelConfig with_llama_parts(ModelConfig model) {
  model.norm = NormKind::kRmsNorm;
  model.positions = Positions::kRope;
  model.mlp = Mlp::kSwiglu;
  model.bias = Bias::kNone;
  model.tied = false;
  return model;
}
// The same with the norm of queries and keys that Qwen3 has
inline ModelConfig with_qwen3_parts(ModelConfig model) {
  model = with_llama_parts(model);
  model.qk_norm = QkNorm::kHeads;
  return model;
}

// Those of the model of configs/speedrun.yaml
inline ModelConfig with_race_parts(ModelConfig model) {
  model = with_qwen3_parts(model);
  model.mlp = Mlp::kRelu2;
  model.bias = Bias::kAll;
  model.rope.share = 0.5;
  model.logit_cap = 15;
  return model;
}

// The same with the parts of a Gemma 3
inline ModelConfig with_gemma_parts(ModelConfig model) {
  model = with_qwen3_parts(model);
  model.norm_place = NormPlace::kBoth;
  model.norm_plus_one = true;
  model.rope = {.theta = 1e4, .local_theta = 100};
  model.window = Windows({{.window = 5}, {.window = Windows::kFull}});
  model.mlp = Mlp::kGeglu;
  model.tied = true;
  model.scale_embeddings = true;
  model.query_scalar = 11;
  return model;
}

inline ModelConfig with_olmo_parts(ModelConfig model) {
  model = with_llama_parts(model);
  model.norm_place = NormPlace::kAfter;
  model.qk_norm = QkNorm::kAllHeads;
  return model;
}

inline ModelConfig with_gemma2_parts(ModelConfig model) {
  model = with_gemma_parts(std::move(model));
  model.rope.local_theta = 0, model.qk_norm = QkNorm::kNone;
  model.logit_cap = 5, model.attention_cap = 3;
  return model;
}

// The same with experts in every block
inline ModelConfig with_experts(ModelConfig model) {
  model.experts = {.count = 5, .active = 2, .width = 24, .renormalise = true};
  return model;
}

inline ModelConfig with_gpt_oss_parts(ModelConfig model) {
  model.experts = {.count = 5, .active = 2, .width = 24, .router = Router::kSoftmaxOfChosen};
  model.mlp = Mlp::kClampedSwiglu;
  model.bias = Bias::kAll;
  model.attention_sinks = true;
  model.window = Windows({{.window = 5}, {.window = Windows::kFull}});
  model.rope = {.theta = 500,
                .scaling = RopeScaling::kYarn,
                .factor = 4,
                .original_context = 8,
                .truncate = false,
                .attention_factor = 1.25};
  return model;
}

inline std::vector<FamilyModel> models_with_experts(const ModelConfig& llama) {
  const auto changed = [](ModelConfig model, const auto& how) {
    how(model);
    return model;
  };
  return {
      {"mixtral", "mixtral", changed(with_experts(llama), [](ModelConfig& m) { m.window = Windows(5); })},
      {"qwen3_moe", "qwen3_moe", with_experts(with_qwen3_parts(llama))},
      {"qwen3_moe_dense", "qwen3_moe",
       changed(with_experts(with_qwen3_parts(llama)),
               [](ModelConfig& m) {
                 m.layers = 4, m.bias = Bias::kAttention, m.tied = true;
                 m.experts.renormalise = false, m.experts.every = 2, m.experts.dense_layers = {1};
               })},
      {"olmoe", "olmoe",
       changed(with_experts(llama),
               [](ModelConfig& m) { m.qk_norm = QkNorm::kAllHeads, m.experts.renormalise = false; })},
      {"gpt_oss", "gpt_oss", with_gpt_oss_parts(llama)},
      {"granitemoe", "granitemoe",
       changed(with_experts(llama),
               [](ModelConfig& m) {
                 m.experts.router = Router::kSoftmaxOfChosen, m.experts.renormalise = false, m.tied = true;
                 m.embedding_scale = 12, m.residual_scale = 0.22, m.query_scalar = 64, m.logit_divisor = 6;
               })},
      {"qwen2_moe", "qwen2_moe",
       changed(with_experts(llama),
               [](ModelConfig& m) {
                 m.bias = Bias::kQkv, m.layers = 3, m.experts.dense_layers = {1};
                 m.experts.shared_width = 40, m.experts.renormalise = false;
               })},
      {"gpt_oss_plain", "gpt_oss", changed(with_gpt_oss_parts(llama), [](ModelConfig& m) {
         m.rope = {.theta = 500}, m.window = {}, m.tied = true;
       })}};
}

inline std::vector<FamilyModel> models_with_caps(const ModelConfig& llama) {
  ModelConfig uncapped = with_gemma2_parts(llama), capped = llama;
  uncapped.attention_cap = uncapped.logit_cap = 0, uncapped.window = {}, uncapped.bias = Bias::kAttention;
  capped.attention_cap = 2;
  return {{"gemma2", "gemma2", with_gemma2_parts(llama)},
          {"gemma2_uncapped", "gemma2", uncapped},
          {"tessera_cap", "tessera", capped}};
}

inline std::vector<FamilyModel> family_models() {
  const ModelConfig llama = with_llama_parts({.vocab_size = 61,
                                              .context = 32,
                                              .layers = 2,
                                              .heads = 4,
                                              .channels = 32,
                                              .kv_heads = 2,
                                              .head_dim = 8,
                                              .mlp_width = 24,
                                              .norm_epsilon = 1e-6f});
  const auto changed = [](ModelConfig model, const auto& how) {
    how(model);
    return model;
  };
  std::vector<FamilyModel> all{
      {"gpt2", "gpt2", {.vocab_size = 61, .context = 32, .layers = 2, .heads = 2, .channels = 32}},
      {"llama", "llama", llama},
      {"llama_tied", "llama", changed(llama, [](ModelConfig& m) { m.tied = true, m.kv_heads = 4; })},
      {"llama_wide_heads", "llama", changed(llama, [](ModelConfig& m) { m.head_dim = 16; })},
      {"llama_linear", "llama",
       changed(
           llama,
           [](ModelConfig& m) { m.rope = {.theta = 500, .scaling = RopeScaling::kLinear, .factor = 4}; })},
      {"llama_llama3", "llama",
       changed(llama,
               [](ModelConfig& m) {
                 m.rope = {.theta = 500,
                           .scaling = RopeScaling::kLlama3,
                           .factor = 4,
                           .original_context = 8,
                           .low_frequency = 1.5,
                           .high_frequency = 5};
               })},
      {"llama_yarn", "llama",
       changed(llama,
               [](ModelConfig& m) {
                 m.rope = {.theta = 500,
                           .scaling = RopeScaling::kYarn,
                           .factor = 4,
                           .original_context = 8,
                           .beta_fast = 16,
                           .beta_slow = 2,
                           .attention_factor = 1.25};
               })},
      {"qwen2", "qwen2", changed(llama, [](ModelConfig& m) { m.bias = Bias::kQkv, m.tied = true; })},
      {"qwen3", "qwen3",
       changed(llama, [](ModelConfig& m) { m.qk_norm = QkNorm::kHeads, m.head_dim = 16, m.kv_heads = 1; })},
      {"llama_biases", "llama", changed(llama, [](ModelConfig& m) { m.bias = Bias::kAll; })},
      {"llama_attention_bias", "llama", changed(llama, [](ModelConfig& m) { m.bias = Bias::kAttention; })},
      {"llama_mlp_bias", "llama", changed(llama, [](ModelConfig& m) { m.bias = Bias::kMlp; })},
      {"qwen3_biases", "qwen3",
       changed(llama, [](ModelConfig& m) { m.qk_norm = QkNorm::kHeads, m.bias = Bias::kAttention; })},
      {"mistral", "mistral", changed(llama, [](ModelConfig& m) { m.window = Windows(5); })},
      {"qwen2_windows", "qwen2",
       changed(llama,
               [](ModelConfig& m) {
                 m.bias = Bias::kQkv, m.window = Windows({{Windows::kFull}, {5}});
               })},
      {"qwen3_windows", "qwen3",
       changed(llama,
               [](ModelConfig& m) {
                 m.qk_norm = QkNorm::kHeads, m.window = Windows({{5}, {Windows::kFull}});
               })},
      {"gemma3", "gemma3_text", with_gemma_parts(llama)},
      {"gemma3_full", "gemma3_text",
       changed(with_gemma_parts(llama),
               [](ModelConfig& m) {
                 m.window = {}, m.rope = {.theta = 500, .scaling = RopeScaling::kLinear, .factor = 8};
                 m.logit_cap = 20, m.bias = Bias::kAttention, m.query_scalar = 16;
               })},
      {"phi3", "phi3",
       changed(llama, [](ModelConfig& m) { m.rope = {.theta = 500, .share = 0.75}, m.head_dim = 16; })},
      {"olmo2", "olmo2", with_olmo_parts(llama)},
      {"tessera_sinks", "tessera", changed(llama, [](ModelConfig& m) { m.attention_sinks = true; })},
      {"olmo2_biases", "olmo2",
       changed(with_olmo_parts(llama),
               [](ModelConfig& m) { m.bias = Bias::kAttention, m.tied = true, m.kv_heads = 4; })},
      {"tessera_all_heads", "tessera", changed(llama, [](ModelConfig& m) { m.qk_norm = QkNorm::kAllHeads; })},
      {"phi3_longrope", "phi3",
       changed(llama,
               [](ModelConfig& m) {
                 m.rope = {.theta = 500,
                           .share = 0.75,
                           .scaling = RopeScaling::kLongrope,
                           .original_context = 8,
                           .attention_factor = 1.125,
                           .short_factors = {1, 1.25, 1.5},
                           .long_factors = {1.5, 3, 7}};
               })},
      {"tessera", "tessera", with_race_parts(llama)},
      {"tessera_gated", "tessera",
       changed(llama, [](ModelConfig& m) { m.logit_cap = 30, m.rope = {.theta = 500, .share = 0.25}; })}};
  for (FamilyModel& one : models_with_experts(llama)) all.push_back(std::move(one));
  for (FamilyModel& one : models_with_caps(llama)) all.push_back(std::move(one));
  return all;
}

}  // namespace tessera::testing

#include "model/presets.h"

#include <optional>

#include "kernels/base/check.h"
#include "model/rope.h"

namespace tessera {
namespace {

// Radford et al., 2019; config.json of openai-community/gpt2, gpt2-medium, gpt2-large and gpt2-xl
ModelConfig gpt2(int64_t layers, int64_t heads, int64_t channels) {
  return {.vocab_size = 50257, .context = 1024, .layers = layers, .heads = heads, .channels = channels};
}

// config.json of bigscience/bloom-560m, bloom-1b1, bloom-1b7, bloom-3b and bloom-7b1
ModelConfig bloom(int64_t layers, int64_t heads, int64_t channels) {
  ModelConfig model{
      .vocab_size = 250880, .context = 2048, .layers = layers, .heads = heads, .channels = channels};
  model.norm_embeddings = true;
  model.positions = Positions::kAlibi;
  return model;
}

struct Sizes {
  int64_t vocab_size = 0, context = 0, layers = 0, heads = 0, kv_heads = 0, channels = 0, mlp_width = 0;
  double theta = 0;
  float norm_epsilon = 0;
};

// What Llama 3, Qwen and SmolLM2 share: RMSNorm, rotary positions, SwiGLU, tied logits (but from 7B on),
// heads of C / H
ModelConfig llama(const Sizes& sizes) {
  return {.vocab_size = sizes.vocab_size,
          .context = sizes.context,
          .layers = sizes.layers,
          .heads = sizes.heads,
          .channels = sizes.channels,
          .kv_heads = sizes.kv_heads,
          .mlp_width = sizes.mlp_width,
          .norm = NormKind::kRmsNorm,
          .norm_epsilon = sizes.norm_epsilon,
          .positions = Positions::kRope,
          .rope = {.theta = sizes.theta},
          .mlp = Mlp::kSwiglu,
          .bias = Bias::kNone};
}

// config.json of meta-llama/Llama-3.1-8B, Llama-3.1-70B, Llama-3.2-1B and Llama-3.2-3B
ModelConfig llama3(Sizes sizes, double rope_factor) {
  sizes.vocab_size = 128256;
  sizes.context = 131072;
  sizes.theta = 500000;
  sizes.norm_epsilon = 1e-5f;
  ModelConfig model = llama(sizes);
  model.rope.scaling = RopeScaling::kLlama3;
  model.rope.factor = rope_factor;
  model.rope.original_context = 8192;
  model.rope.low_frequency = 1;
  model.rope.high_frequency = 4;
  return model;
}

// config.json of Qwen/Qwen2.5-0.5B, Qwen2.5-1.5B, Qwen2.5-3B, Qwen2.5-7B, Qwen2.5-14B and Qwen2.5-32B
ModelConfig qwen25(Sizes sizes) {
  if (sizes.vocab_size == 0) sizes.vocab_size = 151936;
  sizes.theta = 1e6;
  if (sizes.norm_epsilon == 0) sizes.norm_epsilon = 1e-6f;
  ModelConfig model = llama(sizes);
  model.bias = Bias::kQkv;
  return model;
}

// config.json of Qwen/Qwen3-0.6B, Qwen3-1.7B, Qwen3-4B, Qwen3-8B, Qwen3-14B and Qwen3-32B
ModelConfig qwen3(Sizes sizes) {
  sizes.vocab_size = 151936;
  sizes.context = 40960;
  sizes.kv_heads = 8;
  sizes.theta = 1e6;
  sizes.norm_epsilon = 1e-6f;
  ModelConfig model = llama(sizes);
  model.head_dim = 128;
  model.qk_norm = QkNorm::kHeads;
  return model;
}

// config.json of HuggingFaceTB/SmolLM2-135M, SmolLM2-360M and SmolLM2-1.7B
ModelConfig smollm2(Sizes sizes) {
  sizes.vocab_size = 49152;
  sizes.context = 8192;
  if (sizes.theta == 0) sizes.theta = 100000;
  sizes.norm_epsilon = 1e-5f;
  return llama(sizes);
}

ModelConfig untied(ModelConfig model) {
  model.tied = false;
  return model;
}

ModelConfig large_qwen25(int64_t layers, int64_t mlp_width) {
  return untied(qwen25({.vocab_size = 152064,
                        .context = 131072,
                        .layers = layers,
                        .heads = 40,
                        .kv_heads = 8,
                        .channels = 5120,
                        .mlp_width = mlp_width,
                        .norm_epsilon = 1e-5f}));
}

// config.json of google/gemma-2-2b, gemma-2-9b and gemma-2-27b
ModelConfig gemma2(Sizes sizes) {
  sizes.vocab_size = 256000;
  sizes.context = 8192;
  sizes.theta = 1e4;
  sizes.norm_epsilon = 1e-6f;
  ModelConfig model = llama(sizes);
  model.head_dim = 256;
  model.norm_place = NormPlace::kBoth;
  model.norm_plus_one = true;
  model.window = Windows({{.window = 4096, .blocks = 1}, {.window = Windows::kFull}});
  model.mlp = Mlp::kGeglu;
  model.scale_embeddings = true;
  model.logit_cap = 30, model.attention_cap = 50;
  return model;
}

ModelConfig gemma2_27b() {
  ModelConfig model =
      gemma2({.layers = 46, .heads = 32, .kv_heads = 16, .channels = 4608, .mlp_width = 36864});
  model.head_dim = 128, model.query_scalar = 144;
  return model;
}

// config.json of google/gemma-3-270m and gemma-3-1b-pt, and text_config of gemma-3-4b-pt
ModelConfig gemma3(Sizes sizes, int64_t window) {
  if (sizes.vocab_size == 0) sizes.vocab_size = 262144;
  if (sizes.context == 0) sizes.context = 32768;
  sizes.theta = 1e6;
  sizes.norm_epsilon = 1e-6f;
  ModelConfig model = llama(sizes);
  model.head_dim = 256;
  model.norm_place = NormPlace::kBoth;
  model.norm_plus_one = true;
  model.rope.local_theta = 1e4;
  model.window = Windows({{.window = window, .blocks = 5}, {.window = Windows::kFull}});
  model.mlp = Mlp::kGeglu;
  model.qk_norm = QkNorm::kHeads;
  model.scale_embeddings = true;
  return model;
}

ModelConfig gemma3_4b() {
  ModelConfig model = gemma3({.vocab_size = 262208,
                              .context = 131072,
                              .layers = 34,
                              .heads = 8,
                              .kv_heads = 4,
                              .channels = 2560,
                              .mlp_width = 10240},
                             1024);
  model.rope.scaling = RopeScaling::kLinear;
  model.rope.factor = 8;
  return model;
}

ModelConfig gemma(Preset preset) {
  switch (preset) {
    case Preset::kGemma2_2b:
      return gemma2({.layers = 26, .heads = 8, .kv_heads = 4, .channels = 2304, .mlp_width = 9216});
    case Preset::kGemma2_9b:
      return gemma2({.layers = 42, .heads = 16, .kv_heads = 8, .channels = 3584, .mlp_width = 14336});
    case Preset::kGemma2_27b:
      return gemma2_27b();
    case Preset::kGemma3_270m:
      return gemma3({.layers = 18, .heads = 4, .kv_heads = 1, .channels = 640, .mlp_width = 2048}, 512);
    case Preset::kGemma3_1b:
      return gemma3({.layers = 26, .heads = 4, .kv_heads = 1, .channels = 1152, .mlp_width = 6912}, 512);
    case Preset::kGemma3_4b:
      return gemma3_4b();
    default:
      fail("no preset of Gemma");
  }
}

// config.json of allenai/OLMo-2-0425-1B, OLMo-2-1124-7B, OLMo-2-1124-13B and OLMo-2-0325-32B
ModelConfig olmo2(Sizes sizes) {
  sizes.vocab_size = 100352;
  sizes.context = 4096;
  sizes.theta = 500000;
  sizes.norm_epsilon = 1e-6f;
  ModelConfig model = untied(llama(sizes));
  model.norm_place = NormPlace::kAfter;
  model.qk_norm = QkNorm::kAllHeads;
  return model;
}

// config.json of Qwen/Qwen3-30B-A3B
ModelConfig qwen3_30b_a3b() {
  ModelConfig model = untied(qwen3({.layers = 48, .heads = 32, .channels = 2048, .mlp_width = 768}));
  model.kv_heads = 4;
  model.experts = {.count = 128, .active = 8, .width = 768, .renormalise = true};
  return model;
}

// config.json of Qwen/Qwen1.5-MoE-A2.7B
ModelConfig qwen15_moe_a27b() {
  ModelConfig model = untied(qwen25(
      {.context = 8192, .layers = 24, .heads = 16, .kv_heads = 16, .channels = 2048, .mlp_width = 1408}));
  model.experts = {.count = 60, .active = 4, .width = 1408, .shared_width = 5632};
  return model;
}

// config.json of allenai/OLMoE-1B-7B-0924
ModelConfig olmoe_1b_7b() {
  ModelConfig model = untied(llama({.vocab_size = 50304,
                                    .context = 4096,
                                    .layers = 16,
                                    .heads = 16,
                                    .kv_heads = 16,
                                    .channels = 2048,
                                    .mlp_width = 1024,
                                    .theta = 1e4,
                                    .norm_epsilon = 1e-5f}));
  model.qk_norm = QkNorm::kAllHeads;
  model.experts = {.count = 64, .active = 8, .width = 1024};
  return model;
}

// config.json of mistralai/Mixtral-8x7B-v0.1
ModelConfig mixtral_8x7b() {
  ModelConfig model = untied(llama({.vocab_size = 32000,
                                    .context = 32768,
                                    .layers = 32,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .channels = 4096,
                                    .mlp_width = 14336,
                                    .theta = 1e6,
                                    .norm_epsilon = 1e-5f}));
  model.experts = {.count = 8, .active = 2, .width = 14336, .renormalise = true};
  return model;
}

// config.json of openai/gpt-oss-20b and gpt-oss-120b
ModelConfig gpt_oss(int64_t layers, int64_t experts) {
  ModelConfig model = untied(llama({.vocab_size = 201088,
                                    .context = 131072,
                                    .layers = layers,
                                    .heads = 64,
                                    .kv_heads = 8,
                                    .channels = 2880,
                                    .mlp_width = 2880,
                                    .theta = 150000,
                                    .norm_epsilon = 1e-5f}));
  model.head_dim = 64;
  model.window = Windows({{.window = 128}, {.window = Windows::kFull}});
  Rope& rope = model.rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 32;
  rope.original_context = 4096;
  rope.truncate = false;
  model.mlp = Mlp::kClampedSwiglu;
  model.experts = {.count = experts, .active = 4, .width = 2880, .router = Router::kSoftmaxOfChosen};
  model.bias = Bias::kAll;
  model.attention_sinks = true;
  return model;
}

// config.json of ibm-granite/granite-3.0-1b-a400m-base
ModelConfig granite3_1b_a400m() {
  ModelConfig model = llama({.vocab_size = 49155,
                             .context = 4096,
                             .layers = 24,
                             .heads = 16,
                             .kv_heads = 8,
                             .channels = 1024,
                             .mlp_width = 512,
                             .theta = 1e4,
                             .norm_epsilon = 1e-6f});
  model.experts = {.count = 32, .active = 8, .width = 512, .router = Router::kSoftmaxOfChosen};
  model.embedding_scale = 12;
  model.residual_scale = 0.22;
  model.query_scalar = 4096;
  model.logit_divisor = 6;
  return model;
}

// config.json of microsoft/Phi-4-mini-instruct
ModelConfig phi4_mini() {
  ModelConfig model = llama({.vocab_size = 200064,
                             .context = 131072,
                             .layers = 32,
                             .heads = 24,
                             .kv_heads = 8,
                             .channels = 3072,
                             .mlp_width = 8192,
                             .theta = 1e4,
                             .norm_epsilon = 1e-5f});
  model.window = Windows(262144);
  Rope& rope = model.rope;
  rope.share = 0.75;
  rope.scaling = RopeScaling::kLongrope;
  rope.original_context = 4096;
  rope.attention_factor = rope_attention_factor(model);  // of this context, whatever that of a run is
  rope.short_factors.assign(48, 1);
  rope.long_factors = {
      1,           1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,  1.956131817, 2.187582649,
      2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533,
      5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,  10.4687158,  11.70738129, 13.09260651,
      14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03,
      32.1,        32.13,       32.23,       32.6,        32.61,       32.64,       32.66,       32.7,
      32.71,       32.93,       32.97,       33.28,       33.49,       33.5,        44.16,       47.77};
  return model;
}

std::optional<ModelConfig> preset_with_experts(Preset preset) {
  switch (preset) {
    case Preset::kQwen3_30bA3b:
      return qwen3_30b_a3b();
    case Preset::kQwen15_moeA27b:
      return qwen15_moe_a27b();
    case Preset::kOlmoe_1b7b:
      return olmoe_1b_7b();
    case Preset::kMixtral8x7b:
      return mixtral_8x7b();
    case Preset::kGranite3_1bA400m:
      return granite3_1b_a400m();
    case Preset::kGptOss_20b:
      return gpt_oss(24, 32);
    case Preset::kGptOss_120b:
      return gpt_oss(36, 128);
    default:
      return {};
  }
}

}  // namespace

ModelConfig preset_model(Preset preset) {
  if (const auto model = preset_with_experts(preset)) return *model;
  switch (preset) {
    default:
      break;
    case Preset::kGpt2Small:
      return gpt2(12, 12, 768);
    case Preset::kGpt2Medium:
      return gpt2(24, 16, 1024);
    case Preset::kGpt2Large:
      return gpt2(36, 20, 1280);
    case Preset::kGpt2Xl:
      return gpt2(48, 25, 1600);
    case Preset::kLlama31_8b:
      return untied(
          llama3({.layers = 32, .heads = 32, .kv_heads = 8, .channels = 4096, .mlp_width = 14336}, 8));
    case Preset::kLlama31_70b:
      return untied(
          llama3({.layers = 80, .heads = 64, .kv_heads = 8, .channels = 8192, .mlp_width = 28672}, 8));
    case Preset::kLlama32_1b:
      return llama3({.layers = 16, .heads = 32, .kv_heads = 8, .channels = 2048, .mlp_width = 8192}, 32);
    case Preset::kLlama32_3b:
      return llama3({.layers = 28, .heads = 24, .kv_heads = 8, .channels = 3072, .mlp_width = 8192}, 32);
    case Preset::kQwen25_05b:
      return qwen25(
          {.context = 32768, .layers = 24, .heads = 14, .kv_heads = 2, .channels = 896, .mlp_width = 4864});
    case Preset::kQwen25_15b:
      return qwen25(
          {.context = 131072, .layers = 28, .heads = 12, .kv_heads = 2, .channels = 1536, .mlp_width = 8960});
    case Preset::kQwen25_3b:
      return qwen25(
          {.context = 32768, .layers = 36, .heads = 16, .kv_heads = 2, .channels = 2048, .mlp_width = 11008});
    case Preset::kQwen25_7b:
      return untied(qwen25({.vocab_size = 152064,
                            .context = 131072,
                            .layers = 28,
                            .heads = 28,
                            .kv_heads = 4,
                            .channels = 3584,
                            .mlp_width = 18944}));
    case Preset::kQwen25_14b:
      return large_qwen25(48, 13824);
    case Preset::kQwen25_32b:
      return large_qwen25(64, 27648);
    case Preset::kQwen3_06b:
      return qwen3({.layers = 28, .heads = 16, .channels = 1024, .mlp_width = 3072});
    case Preset::kQwen3_17b:
      return qwen3({.layers = 28, .heads = 16, .channels = 2048, .mlp_width = 6144});
    case Preset::kQwen3_4b:
      return qwen3({.layers = 36, .heads = 32, .channels = 2560, .mlp_width = 9728});
    case Preset::kQwen3_8b:
      return untied(qwen3({.layers = 36, .heads = 32, .channels = 4096, .mlp_width = 12288}));
    case Preset::kQwen3_14b:
      return untied(qwen3({.layers = 40, .heads = 40, .channels = 5120, .mlp_width = 17408}));
    case Preset::kQwen3_32b:
      return untied(qwen3({.layers = 64, .heads = 64, .channels = 5120, .mlp_width = 25600}));
    case Preset::kSmollm2_135m:
      return smollm2({.layers = 30, .heads = 9, .kv_heads = 3, .channels = 576, .mlp_width = 1536});
    case Preset::kSmollm2_360m:
      return smollm2({.layers = 32, .heads = 15, .kv_heads = 5, .channels = 960, .mlp_width = 2560});
    case Preset::kSmollm2_17b:
      return smollm2(
          {.layers = 24, .heads = 32, .kv_heads = 32, .channels = 2048, .mlp_width = 8192, .theta = 130000});
    case Preset::kGemma2_2b:
    case Preset::kGemma2_9b:
    case Preset::kGemma2_27b:
    case Preset::kGemma3_270m:
    case Preset::kGemma3_1b:
    case Preset::kGemma3_4b:
      return gemma(preset);
    case Preset::kOlmo2_1b:
      return olmo2({.layers = 16, .heads = 16, .kv_heads = 16, .channels = 2048, .mlp_width = 8192});
    case Preset::kOlmo2_7b:
      return olmo2({.layers = 32, .heads = 32, .kv_heads = 32, .channels = 4096, .mlp_width = 11008});
    case Preset::kOlmo2_13b:
      return olmo2({.layers = 40, .heads = 40, .kv_heads = 40, .channels = 5120, .mlp_width = 13824});
    case Preset::kOlmo2_32b:
      return olmo2({.layers = 64, .heads = 40, .kv_heads = 8, .channels = 5120, .mlp_width = 27648});
    case Preset::kPhi4Mini:
      return phi4_mini();
    case Preset::kBloom_560m:
      return bloom(24, 16, 1024);
    case Preset::kBloom_1b1:
      return bloom(24, 16, 1536);
    case Preset::kBloom_1b7:
      return bloom(24, 16, 2048);
    case Preset::kBloom_3b:
      return bloom(30, 32, 2560);
    case Preset::kBloom_7b1:
      return bloom(30, 32, 4096);
  }
  fail("the preset {} has no model", name_of(preset));
}

}  // namespace tessera

// The variants of GPT-2 that a folder of Hugging Face's may ask for.
#pragma once

#include <fmt/format.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "model/config.h"

namespace tessera::testing {

struct Variant {
  std::string name;  // also of its folder in tests/fixtures/gpt2_variants
  ModelConfig model;
};

// Of the fixtures
inline constexpr ModelConfig kReferenceVariant{
    .vocab_size = 29, .context = 16, .layers = 2, .heads = 2, .channels = 8};

// cuDNN's kernels compute the attention of this model; of packed documents they never do.
inline bool cudnn_serves(const ModelConfig& model) {
  return model.dropout.attention == 0 && model.window.all_full() && !model.attention_sinks &&
         model.attention_cap == 0 && model.positions != Positions::kAlibi;
}

inline std::vector<Variant> variants_of(const ModelConfig& plain) {
  std::vector<Variant> all{{"untied", plain},   {"gelu_exact", plain}, {"relu", plain},    {"epsilon", plain},
                           {"unscaled", plain}, {"by_layer", plain},   {"n_inner", plain}, {"all", plain}};
  const auto change = [&](const char* name, const auto& how) {
    for (Variant& variant : all)
      if (variant.name == name || variant.name == "all") how(variant.model);
  };
  change("untied", [](ModelConfig& m) { m.tied = false; });
  change("relu", [](ModelConfig& m) { m.mlp = Mlp::kRelu; });
  change("gelu_exact", [](ModelConfig& m) { m.mlp = Mlp::kGeluExact; });
  change("epsilon", [](ModelConfig& m) { m.norm_epsilon = 1e-3f; });
  change("unscaled", [](ModelConfig& m) { m.scale_attention = false; });
  change("by_layer", [](ModelConfig& m) { m.scale_attention_by_layer = true; });
  change("n_inner", [](ModelConfig& m) { m.mlp_width = 3 * m.channels; });
  return all;
}

// What scores of attention may have beside their scale
inline std::vector<Variant> score_parts_of(const ModelConfig& plain) {
  std::vector<Variant> all;
  const auto add = [&](const char* name, const ModelConfig& base, const auto& how) {
    all.push_back({name, base});
    how(all.back().model);
  };
  add("capped scores", plain, [](ModelConfig& m) { m.attention_cap = 0.5; });
  add("capped scores with sinks, dropout and a window", plain, [](ModelConfig& m) {
    m.attention_cap = 0.7, m.attention_sinks = true, m.dropout.attention = 0.2, m.window = Windows(5);
    m.kv_heads = m.heads / 2;
  });
  add("sinks", plain, [](ModelConfig& m) { m.attention_sinks = true; });
  add("sinks with dropout and a window", plain,
      [](ModelConfig& m) { m.attention_sinks = true, m.dropout.attention = 0.2, m.window = Windows(5); });
  add("alibi", plain, [](ModelConfig& m) { m.positions = Positions::kAlibi; });
  add("bloom", plain, [](ModelConfig& m) { m.positions = Positions::kAlibi, m.norm_embeddings = true; });
  add("alibi with windows and sinks", plain, [](ModelConfig& m) {
    m.positions = Positions::kAlibi, m.window = Windows({{.window = 3}, {.window = Windows::kFull}});
    m.attention_sinks = true, m.kv_heads = m.heads / 2;
  });
  add("alibi with dropout", plain,
      [](ModelConfig& m) { m.positions = Positions::kAlibi, m.dropout.attention = 0.2; });
  return all;
}

// With sparse blocks of two tokens, as only the CPU has them: in all blocks of the model, or not in every one
inline std::vector<Variant> sparse_parts_of(const ModelConfig& plain) {
  const auto with = [&](const char* name, const SparseBlocks& sparse, const auto& how) {
    Variant variant{name, plain};
    variant.model.sparse = sparse;
    how(variant.model);
    return variant;
  };
  const auto nothing_else = [](ModelConfig&) {};
  const SparsePattern window{.window = 1, .block = 2}, global{.window = 2, .global = 1, .block = 2},
      stride{.window = 1, .stride = 3, .block = 2},
      random{.window = 1, .global = 1, .random = 1, .seed = 5, .block = 2};
  return {with("sparse blocks: a window", SparseBlocks(window), nothing_else),
          with("sparse blocks: window and global", SparseBlocks(global), nothing_else),
          with("sparse blocks: window and stride, in turn with full",
               SparseBlocks({{.pattern = stride}, {.pattern = {}}}), nothing_else),
          with("sparse blocks: random, grouped heads and sinks", SparseBlocks(random),
               [](ModelConfig& m) { m.kv_heads = m.heads / 2, m.attention_sinks = true; }),
          with("chosen blocks", SparseBlocks(SparsePattern{.block = 2, .chosen = 2}), nothing_else),
          with("chosen blocks in turn with full, grouped heads and sinks, rotated",
               SparseBlocks({{.pattern = {.block = 1, .chosen = 3}}, {.pattern = {}}}),
               [](ModelConfig& m) {
                 m.kv_heads = m.heads / 2, m.attention_sinks = true, m.positions = Positions::kRope;
               }),
          with("sparse blocks with dropout", SparseBlocks(global),
               [](ModelConfig& m) { m.dropout.attention = 0.2; }),
          with("sparse blocks beside windows, rotated", SparseBlocks({{.pattern = {}}, {.pattern = global}}),
               [](ModelConfig& m) {
                 m.positions = Positions::kRope;
                 m.window = Windows({{.window = 3}, {.window = Windows::kFull}});
               })};
}

// Mixtures of experts
inline std::vector<Variant> experts_of(const ModelConfig& llama) {
  std::vector<Variant> all;
  const auto add = [&](const char* name, const ModelConfig& base, const auto& how) {
    all.push_back({name, base});
    how(all.back().model);
  };
  add("qwen3 with experts", llama, [](ModelConfig& m) {
    m.qk_norm = QkNorm::kHeads, m.norm_epsilon = 1e-6f, m.tied = false;
    m.experts = {.count = 4, .active = 2, .width = m.channels, .renormalise = true};
  });
  add("experts in some blocks", llama,
      [](ModelConfig& m) { m.experts = {.count = 5, .active = 3, .width = m.channels / 2, .every = 2}; });
  add("experts with norms after", llama, [](ModelConfig& m) {
    m.norm_place = NormPlace::kAfter;
    m.experts = {.count = 3,
                 .active = 1,
                 .width = m.channels,
                 .router = Router::kSoftmaxOfChosen,
                 .dense_layers = {0}};
  });
  add("experts with dropout", llama, [](ModelConfig& m) {
    m.mlp = Mlp::kGeglu, m.dropout = {0.1, 0.2, 0.1};
    m.experts = {.count = 4, .active = 4, .width = m.channels};
  });
  add("gpt_oss", llama, [](ModelConfig& m) {
    m.mlp = Mlp::kClampedSwiglu, m.bias = Bias::kAll, m.attention_sinks = true,
    m.window = Windows({{.window = 3}, {.window = Windows::kFull}});
    m.experts = {.count = 5, .active = 2, .width = m.channels, .router = Router::kSoftmaxOfChosen};
  });
  return all;
}

// Each part of other families alone, each place of dropout, windows, and the families. `plain` has an even
// number of heads.
inline std::vector<Variant> parts_of(const ModelConfig& plain) {
  std::vector<Variant> all;
  const auto add = [&](const char* name, const ModelConfig& base, const auto& how) {
    all.push_back({name, base});
    how(all.back().model);
    return all.back().model;
  };
  add("rmsnorm", plain, [](ModelConfig& m) { m.norm = NormKind::kRmsNorm; });
  add("rope", plain, [](ModelConfig& m) { m.positions = Positions::kRope; });
  add("swiglu", plain, [](ModelConfig& m) { m.mlp = Mlp::kSwiglu; });
  add("geglu", plain, [](ModelConfig& m) { m.mlp = Mlp::kGeglu; });
  add("norms after", plain,
      [](ModelConfig& m) { m.norm = NormKind::kRmsNorm, m.norm_place = NormPlace::kBoth; });
  add("norms after alone", plain,
      [](ModelConfig& m) { m.norm = NormKind::kRmsNorm, m.norm_place = NormPlace::kAfter; });
  add("norms of 1 + weight", plain,
      [](ModelConfig& m) { m.norm = NormKind::kRmsNorm, m.norm_plus_one = true; });
  add("scaled embeddings", plain, [](ModelConfig& m) { m.scale_embeddings = true; });
  add("query scalar", plain, [](ModelConfig& m) { m.query_scalar = 3; });
  add("squared relu", plain, [](ModelConfig& m) { m.mlp = Mlp::kRelu2; });
  add("half of each head rotated", plain,
      [](ModelConfig& m) { m.positions = Positions::kRope, m.rope.share = 0.5; });
  add("capped logits", plain, [](ModelConfig& m) { m.logit_cap = 2; });
  add("no bias", plain, [](ModelConfig& m) { m.bias = Bias::kNone; });
  add("grouped heads", plain, [](ModelConfig& m) { m.kv_heads = m.heads / 2; });
  add("wide heads", plain, [](ModelConfig& m) { m.head_dim = m.head_dim + 8; });
  add("normed embeddings with dropout", plain,
      [](ModelConfig& m) { m.norm_embeddings = true, m.dropout.embedding = 0.1; });
  for (const Variant& each : score_parts_of(plain)) all.push_back(each);
  add("dropout of embeddings", plain, [](ModelConfig& m) { m.dropout.embedding = 0.1; });
  add("dropout of branches", plain, [](ModelConfig& m) { m.dropout.residual = 0.25; });
  add("dropout of attention", plain, [](ModelConfig& m) { m.dropout.attention = 0.2; });
  add("dropout", plain, [](ModelConfig& m) { m.dropout = {0.1, 0.1, 0.1}; });
  const ModelConfig llama = add("llama", plain, [](ModelConfig& m) {
    m.norm = NormKind::kRmsNorm;
    m.positions = Positions::kRope;
    m.mlp = Mlp::kSwiglu;
    m.bias = Bias::kNone;
    m.kv_heads = m.heads / 2;
    m.mlp_width = 3 * m.channels;
  });
  add("race", llama, [](ModelConfig& m) {
    m.mlp = Mlp::kRelu2, m.qk_norm = QkNorm::kHeads, m.rope.share = 0.5, m.tied = false, m.logit_cap = 3;
    m.kv_heads = m.heads;
  });
  add("llama untied", llama, [](ModelConfig& m) { m.tied = false; });
  add("qwen2", llama, [](ModelConfig& m) { m.bias = Bias::kQkv, m.rope.theta = 1e6; });
  add("llama with biases", llama, [](ModelConfig& m) { m.bias = Bias::kAll; });
  add("llama with biases of attention", llama, [](ModelConfig& m) { m.bias = Bias::kAttention; });
  add("llama with biases of the MLP", llama, [](ModelConfig& m) { m.bias = Bias::kMlp; });
  add("llama with dropout", llama, [](ModelConfig& m) { m.dropout = {0.2, 0.1, 0.3}; });
  // Shorter than the sequences of every test. The pattern repeats from the third block on.
  const Windows windows({{.window = 3}, {.window = Windows::kFull}});
  add("a window", plain, [](ModelConfig& m) { m.window = Windows(5); });
  add("windows with dropout", plain, [&](ModelConfig& m) { m.window = windows, m.dropout.attention = 0.2; });
  add("windows with angles of their own", plain, [&](ModelConfig& m) {
    m.window = windows;
    m.positions = Positions::kRope;
    m.rope = {.theta = 1e6, .local_theta = 100};
  });
  add("llama with a window", llama, [](ModelConfig& m) { m.window = Windows(4); });
  add("qwen3 with windows", llama, [&](ModelConfig& m) { m.qk_norm = QkNorm::kHeads, m.window = windows; });
  add("qwen3", llama,
      [](ModelConfig& m) { m.qk_norm = QkNorm::kHeads, m.head_dim += 8, m.norm_epsilon = 1e-6f; });
  add("a norm of all heads", llama, [](ModelConfig& m) { m.qk_norm = QkNorm::kAllHeads; });
  for (const Variant& each : experts_of(llama)) all.push_back(each);
  add("a shared expert", llama, [](ModelConfig& m) {
    m.bias = Bias::kQkv;
    m.experts = {.count = 4, .active = 2, .width = m.channels, .shared_width = m.channels / 2};
  });
  add("a shared expert with norms after", llama, [](ModelConfig& m) {
    m.norm_place = NormPlace::kAfter;
    m.experts = {.count = 3, .active = 1, .width = m.channels, .shared_width = 2 * m.channels, .every = 2};
  });
  add("granite", llama, [](ModelConfig& m) {
    m.embedding_scale = 3, m.residual_scale = 0.25, m.query_scalar = 16, m.logit_divisor = 2;
    m.experts = {.count = 4, .active = 2, .width = m.channels, .router = Router::kSoftmaxOfChosen};
  });
  add("scaled branches with dropout", llama,
      [](ModelConfig& m) { m.residual_scale = 0.5, m.dropout.residual = 0.1, m.logit_divisor = 3; });
  add("clamped swiglu", plain, [](ModelConfig& m) { m.mlp = Mlp::kClampedSwiglu; });
  add("olmo2", llama, [](ModelConfig& m) {
    m.norm_place = NormPlace::kAfter, m.qk_norm = QkNorm::kAllHeads, m.norm_epsilon = 1e-6f, m.tied = false;
  });
  add("gemma", llama, [](ModelConfig& m) {
    m.mlp = Mlp::kGeglu;
    m.norm_place = NormPlace::kBoth;
    m.norm_plus_one = true;
    m.qk_norm = QkNorm::kHeads;
    m.scale_embeddings = true;
    m.head_dim += 8, m.query_scalar = m.head_dim + 5;
    m.norm_epsilon = 1e-6f;
  });
  return all;
}

// The families after GPT-2 that model/formats knows
inline std::vector<Variant> families_of(const ModelConfig& plain) {
  std::vector<Variant> all = parts_of(plain);
  std::erase_if(all, [](const Variant& v) {
    return !v.name.starts_with("llama") && !v.name.starts_with("qwen") && v.name != "gemma" &&
           v.name != "olmo2";
  });
  return all;
}

// Llama-shaped models of random sizes: 1 to 32 heads that share any number of key and value heads. Widths are
// multiples of `unit`, head dims of 2 and of `unit`. About half of them drop something.
inline std::vector<Variant> random_variants(int count, int64_t unit, int64_t most_heads = 32) {
  std::vector<Variant> all;
  for (int i = 0; i < count; ++i) {
    const Philox random(77, static_cast<uint64_t>(i));
    uint64_t draws = 0;
    const auto pick = [&](int64_t least, int64_t most) {  // both included
      return least + static_cast<int64_t>(random.bits(draws++)[0] % static_cast<uint64_t>(most - least + 1));
    };
    ModelConfig m{.vocab_size = pick(11, 300),
                  .context = 130,
                  .layers = pick(1, 2),
                  .heads = pick(1, most_heads),
                  .channels = unit * pick(4, 9)};  // of fewer a norm cancels most
    do m.kv_heads = pick(1, m.heads);
    while (m.heads % m.kv_heads != 0);
    const int64_t pair = std::lcm<int64_t>(2, unit);
    m.head_dim = pair * pick(8 / pair, 32 / pair);
    m.mlp_width = unit * pick(1, 20);
    m.norm = NormKind::kRmsNorm;
    m.norm_epsilon = pick(0, 1) == 0 ? 1e-5f : 1e-6f;
    m.positions = Positions::kRope;
    m.rope.theta = pick(0, 1) == 0 ? 1e4 : 1e6;
    m.mlp = pick(0, 2) == 0 ? Mlp::kGeglu : Mlp::kSwiglu;
    constexpr Bias kBiases[] = {Bias::kNone, Bias::kQkv, Bias::kAll, Bias::kAttention, Bias::kMlp};
    m.bias = kBiases[pick(0, std::ssize(kBiases) - 1)];
    m.qk_norm = QkNorm{static_cast<uint8_t>(pick(0, 2))};
    m.tied = pick(0, 1) == 0;
    for_each_dropout_key(m.dropout,
                         [&](const char*, double& p) { p = std::max<int64_t>(0, pick(-9, 3)) / 10.0; });
    m.norm_plus_one = pick(0, 2) == 0;
    m.scale_embeddings = pick(0, 2) == 0;
    if (pick(0, 2) == 0) {
      m.norm_place = pick(0, 1) == 0 ? NormPlace::kBoth : NormPlace::kAfter;
      m.dropout.residual = 0;
    }
    all.push_back({fmt::format("random {}: {} heads, {} of keys, of {}, {} channels, MLP {}{}{}", i, m.heads,
                               m.kv_heads, m.head_dim, m.channels, m.mlp_width,
                               m.has_qk_norm() ? ", QK norm" : "", m.dropout ? ", dropout" : ""),
                   m});
  }
  return all;
}

}  // namespace tessera::testing

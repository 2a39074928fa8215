// The sizes and variants of a transformer: GPT-2, Llama, Qwen, Gemma, OLMo, Phi and BLOOM are configurations
// of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/base/activation.h"
#include "kernels/base/router.h"
#include "kernels/base/words.h"
#include "model/lora_config.h"
#include "model/sparse.h"
#include "model/windows.h"

namespace tessera {

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };
constexpr auto words_of(NormKind) {  // of model.norm
  return std::array{Word{"layernorm", NormKind::kLayerNorm}, Word{"rmsnorm", NormKind::kRmsNorm}};
}

// The norms of a block
enum class NormPlace : uint8_t {
  kBefore,  // of what attention and the MLP read
  kBoth,    // and of what they add to the residual stream
  kAfter,   // of that alone
};
constexpr auto words_of(NormPlace) {  // of model.norm_place
  return std::array{Word{"before", NormPlace::kBefore}, Word{"both", NormPlace::kBoth},
                    Word{"after", NormPlace::kAfter}};
}

// An RMSNorm of queries and keys, before they are rotated
enum class QkNorm : uint8_t {
  kNone,
  kHeads,     // of every head by itself
  kAllHeads,  // of all heads of a token together
};
constexpr auto words_of(QkNorm) {  // of model.qk_norm
  return std::array{Word{"false", QkNorm::kNone}, Word{"true", QkNorm::kHeads},
                    Word{"all_heads", QkNorm::kAllHeads}};
}

enum class Positions : uint8_t {
  kLearned,  // a table of context rows, added to the embeddings
  kAlibi,    // scores have a bias that grows with the distance: kernels/attention/alibi.h
  kRope,  // rotary: q and k are rotated by angles that grow with the position (Su et al., arXiv:2104.09864)
};
constexpr auto words_of(Positions) {  // of model.positions
  return std::array{Word{"learned", Positions::kLearned}, Word{"alibi", Positions::kAlibi},
                    Word{"rope", Positions::kRope}};
}

// Which linear layers have a bias: kAttention: q, k, v and W_O; kQkv: the first three of these; kMlp: those
// of the MLP, or of the router and all experts. A LayerNorm always has one, an RMSNorm never, the logits
// never.
enum class Bias : uint8_t { kAll, kAttention, kQkv, kMlp, kNone };
constexpr auto words_of(Bias) {  // of model.bias
  return std::array{Word{"all", Bias::kAll}, Word{"attention", Bias::kAttention}, Word{"qkv", Bias::kQkv},
                    Word{"mlp", Bias::kMlp}, Word{"none", Bias::kNone}};
}

// The hidden layer's activation; swiglu, geglu and clamped_swiglu: gated
enum class Mlp : uint8_t { kGelu, kGeluExact, kRelu, kRelu2, kSwiglu, kGeglu, kClampedSwiglu };
constexpr bool is_gated(Mlp mlp) { return mlp >= Mlp::kSwiglu; }
constexpr auto words_of(Mlp) {  // of model.mlp
  return std::array{Word{"gelu", Mlp::kGelu},
                    Word{"gelu_exact", Mlp::kGeluExact},
                    Word{"relu", Mlp::kRelu},
                    Word{"relu2", Mlp::kRelu2},
                    Word{"swiglu", Mlp::kSwiglu},
                    Word{"geglu", Mlp::kGeglu},
                    Word{"clamped_swiglu", Mlp::kClampedSwiglu}};
}

// How the angles of a model that was trained on short sequences are changed for long ones
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongrope };
constexpr auto words_of(RopeScaling) {  // of model.rope.scaling
  return std::array{Word{"none", RopeScaling::kNone}, Word{"linear", RopeScaling::kLinear},
                    Word{"llama3", RopeScaling::kLlama3}, Word{"yarn", RopeScaling::kYarn},
                    Word{"longrope", RopeScaling::kLongrope}};
}

// The angles of rotary positions: model/rope.h has the formulas.
struct Rope {
  double theta = 10000;
  double local_theta = 0;  // of blocks with a window, which then have no scaling; 0: as the other blocks
  double share = 1;        // of a head's channels, from the first on, that is rotated
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;             // linear, llama3, yarn
  int64_t original_context = 0;  // llama3, yarn, longrope: that the model was trained on; 0: model.context
  double low_frequency = 1, high_frequency = 4;  // llama3: waves between context / these are blended
  double beta_fast = 32, beta_slow = 1;          // yarn: rotations within the context between which to blend
  bool truncate = true;                          // yarn: the pairs between which to blend are whole numbers
  double attention_factor = 0;  // yarn, longrope: scales cos and sin; 0: rope_attention_factor() has it
  std::vector<double> short_factors = {}, long_factors = {};  // longrope: R / 2 each, of sequences of at most
                                                              // original_context tokens, and of longer ones

  bool operator==(const Rope&) const = default;
};

// The probabilities with which elements are dropped in training, each 0 or as dropout_threshold() takes it:
// model/dropout.h
struct DropoutConfig {
  double embedding = 0;  // the sum of token and position embeddings
  double residual = 0;   // what attention and MLP add to the residual stream
  double attention = 0;  // attention's probabilities

  bool operator==(const DropoutConfig&) const = default;
  explicit operator bool() const { return *this != DropoutConfig{}; }
};

// A mixture of experts in place of the MLP of some blocks: each token goes through the `active` ones of
// `count` gated MLPs that its router chooses, and what they compute is added up with the router's weights.
struct ExpertsConfig {
  int64_t count = 0;         // E; 0: no block has experts
  int64_t active = 0;        // k
  int64_t width = 0;         // the hidden layer of each
  int64_t shared_width = 0;  // that of an expert that every token goes through as well; 0: there is none
  Router router = Router::kSoftmax;
  bool renormalise = false;                // see RouterRule
  int64_t every = 1;                       // of so many blocks the last one has experts
  std::vector<int64_t> dense_layers = {};  // numbers of blocks that have none, rising

  bool operator==(const ExpertsConfig&) const = default;
  explicit operator bool() const { return count > 0; }
  bool in_block(int64_t layer) const {
    return count > 0 && (layer + 1) % every == 0 &&
           std::ranges::find(dense_layers, layer) == dense_layers.end();
  }
  RouterRule rule() const { return {.router = router, .renormalise = renormalise}; }
};

// The largest sizes of a model, whether a configuration or a folder names them: they keep counts of
// parameters within int64_t, and lists by block small.
struct SizeLimit {
  std::string_view key;
  int64_t most;
};
inline constexpr SizeLimit kSizeLimits[] = {{"model.vocab_size", 1'000'000'000},
                                            {"model.context", 10'000'000},
                                            {"model.layers", 10'000},
                                            {"model.heads", 1'000'000},
                                            {"model.kv_heads", 1'000'000},
                                            {"model.channels", 1'000'000},
                                            {"model.head_dim", 65'536},
                                            {"model.mlp_width", 4'000'000},
                                            {"model.experts.count", 4'096},
                                            {"model.experts.active", 64},
                                            {"model.experts.width", 4'000'000},
                                            {"model.experts.shared_width", 4'000'000},
                                            {"model.experts.every", 10'000},
                                            {"model.query_scalar", 1'000'000},
                                            {"model.rope.original_context", 10'000'000}};
inline constexpr int64_t kMostAttentionWidth = 4'000'000;  // H D
constexpr int64_t most_of(std::string_view key) {
  for (const SizeLimit& limit : kSizeLimits)
    if (limit.key == key) return limit.most;
  return std::numeric_limits<int64_t>::max();
}

struct ModelConfig {
  // Those that are 0 have no default. The others are computed from them, so each has a value from the start.
  int64_t vocab_size = 0;    // V: tokens 0 .. V - 1
  int64_t context = 0;       // the longest sequence; learned positions: rows of their table
  int64_t layers = 0;        // L
  int64_t heads = 0;         // H: of queries
  int64_t channels = 0;      // C
  int64_t kv_heads = heads;  // K: of keys and values; divides heads
  int64_t head_dim = heads > 0 ? channels / heads : 0;  // D
  int64_t mlp_width = 4 * channels;                     // F: the hidden layer of every MLP
  NormKind norm = NormKind::kLayerNorm;
  float norm_epsilon = 1e-5f;  // added to the variance, or to the mean of squares
  NormPlace norm_place = NormPlace::kBefore;
  bool norm_embeddings = false;  // a norm of what the first block reads
  bool norm_plus_one = false;    // RMSNorm: a normed channel is multiplied by 1 + weight
  Positions positions = Positions::kLearned;
  Rope rope = {};            // where positions are rotary
  Windows window = {};       // of attention, by block
  SparseBlocks sparse = {};  // likewise: which blocks of keys are seen
  Mlp mlp = Mlp::kGelu;
  ExpertsConfig experts = {};
  Bias bias = Bias::kAll;
  QkNorm qk_norm = QkNorm::kNone;
  bool tied = true;                       // the logits use the token table
  bool scale_embeddings = false;          // rows of the token table are multiplied by sqrt(C)
  double embedding_scale = 1;             // and by this
  double residual_scale = 1;              // of what attention and the MLP add to the residual stream
  double logit_divisor = 1;               // the logits are divided by it
  double logit_cap = 0;                   // c: the logits l become c tanh(l / c); 0: they stay
  double attention_cap = 0;               // c: a score s of attention becomes c tanh(s / c); 0: it stays
  bool attention_sinks = false;           // each head's softmax has one more score, that of no key
  bool scale_attention = true;            // scores are divided by sqrt(query_scalar)
  int64_t query_scalar = 0;               // 0: D
  bool scale_attention_by_layer = false;  // and, in block l, by l + 1
  DropoutConfig dropout = {};             // of training alone
  LoraConfig lora = {};                   // adapters, which are parameters as well

  bool operator==(const ModelConfig&) const = default;
  int64_t qkv_heads() const { return heads + 2 * kv_heads; }
  bool gated() const { return is_gated(mlp); }
  bool has_qk_norm() const { return qk_norm != QkNorm::kNone; }
  float norm_offset() const { return norm_plus_one ? 1.0f : 0.0f; }
  bool has_out_bias() const { return bias == Bias::kAll || bias == Bias::kAttention; }  // of W_O
  bool has_qkv_bias() const { return has_out_bias() || bias == Bias::kQkv; }
  bool has_mlp_bias() const { return bias == Bias::kAll || bias == Bias::kMlp; }
  // Channels of a head that are rotated, R: an even number; rounded down, as transformers does
  int64_t rotated_channels() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * rope.share);
  }
  int64_t attention_width() const { return heads * head_dim; }  // of attention's output
  int64_t parameters() const;                                   // without the padding
  // Those that a token goes through: `active` experts of all
  int64_t active_parameters() const;
  bool has_dense_blocks() const;
  // Without adapters: what a folder of weights holds
  ModelConfig base() const {
    ModelConfig model = *this;
    model.lora = {};
    return model;
  }
  // Twice the keys that a token of a text of T tokens sees, its own for a half: the mean over the tokens and
  // the blocks. T where no block has a window or sparse attention.
  double attention_span(double T) const;
  // Of a document that begins at token `begin` of a sequence and ends before `end`
  double attention_span(int64_t begin, int64_t end) const;
  // FLOPs of training on one token: 6 a parameter that it goes through, and 6 L H D attention_span() for
  // causal attention, half of the full T^2 without windows. A table that is only looked up has none.
  double flops_of_span(double attention_span) const;
  double flops_per_token(double T) const { return flops_of_span(attention_span(T)); }
  // Rows of the token table: tensor cores need multiples of 128. The padding never enters a loss.
  int64_t padded_vocab() const { return (vocab_size + 127) / 128 * 128; }
};

// Calls visit(key, member) for every key of a configuration that describes the model, but for model.preset.
// Dropout and adapters do not: they are how a model is trained.
template <class M, class Visit>
void for_each_model_key(M& model, Visit&& visit) {
  visit("model.vocab_size", model.vocab_size);
  visit("model.context", model.context);
  visit("model.layers", model.layers);
  visit("model.heads", model.heads);
  visit("model.kv_heads", model.kv_heads);
  visit("model.channels", model.channels);
  visit("model.head_dim", model.head_dim);
  visit("model.mlp_width", model.mlp_width);
  visit("model.mlp", model.mlp);
  visit("model.experts.count", model.experts.count);
  visit("model.experts.active", model.experts.active);
  visit("model.experts.width", model.experts.width);
  visit("model.experts.shared_width", model.experts.shared_width);
  visit("model.experts.router", model.experts.router);
  visit("model.experts.renormalise", model.experts.renormalise);
  visit("model.experts.every", model.experts.every);
  visit("model.experts.dense_layers", model.experts.dense_layers);
  visit("model.norm", model.norm);
  visit("model.norm_epsilon", model.norm_epsilon);
  visit("model.norm_place", model.norm_place);
  visit("model.norm_plus_one", model.norm_plus_one);
  visit("model.norm_embeddings", model.norm_embeddings);
  visit("model.positions", model.positions);
  visit("model.window", model.window);
  visit("model.sparse", model.sparse);
  visit("model.rope.theta", model.rope.theta);
  visit("model.rope.local_theta", model.rope.local_theta);
  visit("model.rope.share", model.rope.share);
  visit("model.rope.scaling", model.rope.scaling);
  visit("model.rope.factor", model.rope.factor);
  visit("model.rope.original_context", model.rope.original_context);
  visit("model.rope.low_frequency", model.rope.low_frequency);
  visit("model.rope.high_frequency", model.rope.high_frequency);
  visit("model.rope.beta_fast", model.rope.beta_fast);
  visit("model.rope.beta_slow", model.rope.beta_slow);
  visit("model.rope.truncate", model.rope.truncate);
  visit("model.rope.attention_factor", model.rope.attention_factor);
  visit("model.rope.short_factors", model.rope.short_factors);
  visit("model.rope.long_factors", model.rope.long_factors);
  visit("model.bias", model.bias);
  visit("model.qk_norm", model.qk_norm);
  visit("model.tied", model.tied);
  visit("model.scale_embeddings", model.scale_embeddings);
  visit("model.embedding_scale", model.embedding_scale);
  visit("model.residual_scale", model.residual_scale);
  visit("model.logit_divisor", model.logit_divisor);
  visit("model.logit_cap", model.logit_cap);
  visit("model.attention_cap", model.attention_cap);
  visit("model.attention_sinks", model.attention_sinks);
  visit("model.scale_attention", model.scale_attention);
  visit("model.query_scalar", model.query_scalar);
  visit("model.scale_attention_by_layer", model.scale_attention_by_layer);
}
template <class D, class Visit>
void for_each_dropout_key(D& dropout, Visit&& visit) {
  visit("model.dropout.embedding", dropout.embedding);
  visit("model.dropout.residual", dropout.residual);
  visit("model.dropout.attention", dropout.attention);
}

}  // namespace tessera

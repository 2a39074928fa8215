// The sizes and variants of a transformer. GPT-2, Llama, Qwen, Gemma, OLMo, Phi and BLOOM are configurations
// of one transformer.
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

// Where the norms of a block are
enum class NormPlace : uint8_t {
  kBefore,  // before attention and the MLP: of what they read
  kBoth,    // before them, and after them: also of what they add to the residual stream
  kAfter,   // only after them
};
constexpr auto words_of(NormPlace) {  // of model.norm_place
  return std::array{Word{"before", NormPlace::kBefore}, Word{"both", NormPlace::kBoth},
                    Word{"after", NormPlace::kAfter}};
}

// An RMSNorm of queries and keys, before they are rotated
enum class QkNorm : uint8_t {
  kNone,
  kHeads,     // of each head by itself
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

// Which linear layers have a bias. kAttention: q, k, v and W_O; kQkv: q, k and v; kMlp: the layers of the
// MLP, or of the router and all experts. A LayerNorm always has a bias, an RMSNorm never, and the logits
// never.
enum class Bias : uint8_t { kAll, kAttention, kQkv, kMlp, kNone };
constexpr auto words_of(Bias) {  // of model.bias
  return std::array{Word{"all", Bias::kAll}, Word{"attention", Bias::kAttention}, Word{"qkv", Bias::kQkv},
                    Word{"mlp", Bias::kMlp}, Word{"none", Bias::kNone}};
}

// The activation of the hidden layer. swiglu, geglu and clamped_swiglu are gated
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

// How the angles of a model that was trained on short sequences are changed for longer ones
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongrope };
constexpr auto words_of(RopeScaling) {  // of model.rope.scaling
  return std::array{Word{"none", RopeScaling::kNone}, Word{"linear", RopeScaling::kLinear},
                    Word{"llama3", RopeScaling::kLlama3}, Word{"yarn", RopeScaling::kYarn},
                    Word{"longrope", RopeScaling::kLongrope}};
}

// The angles of rotary positions: model/rope.h has the formulas.
struct Rope {
  double theta = 10000;
  double local_theta = 0;  // for blocks with a window, which then have no scaling; 0: as in the other blocks
  double share = 1;        // the share of a head's channels, from the first one on, that is rotated
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;             // for linear, llama3, yarn
  int64_t original_context = 0;  // for llama3, yarn, longrope: the context of the training; 0: model.context
  double low_frequency = 1, high_frequency = 4;  // llama3: waves between context / these are blended
  double beta_fast = 32, beta_slow = 1;          // yarn: blends between these numbers of rotations in the
                                                 // context
  bool truncate = true;                          // yarn: rounds the bounds of the blended pairs to whole
                                                 // numbers
  double attention_factor = 0;  // yarn, longrope: multiplies cos and sin; 0: that of rope_attention_factor()
  std::vector<double> short_factors = {}, long_factors = {};  // longrope: R / 2 each, of sequences of at most
                                                              // original_context tokens, and of longer ones

  bool operator==(const Rope&) const = default;
};

// The probabilities with which elements are dropped in training. Each is 0, or one that dropout_threshold()
// takes: model/dropout.h
struct DropoutConfig {
  double embedding = 0;  // the sum of token and position embeddings
  double residual = 0;   // what attention and MLP add to the residual stream
  double attention = 0;  // attention's probabilities

  bool operator==(const DropoutConfig&) const = default;
  explicit operator bool() const { return *this != DropoutConfig{}; }
};

// A mixture of experts in place of the MLP of some blocks. A router chooses `active` of the `count` gated
// MLPs for each token; their results are added up with the router's weights.
struct ExpertsConfig {
  int64_t count = 0;         // E; 0: no block has experts
  int64_t active = 0;        // k
  int64_t width = 0;         // of the hidden layer of each expert
  int64_t shared_width = 0;  // the same for an expert that every token goes through as well; 0: there is none
  Router router = Router::kSoftmax;
  bool renormalise = false;                // see RouterRule
  int64_t every = 1;                       // every so many-th block has experts
  std::vector<int64_t> dense_layers = {};  // the numbers of further blocks that have none, rising

  bool operator==(const ExpertsConfig&) const = default;
  explicit operator bool() const { return count > 0; }
  bool in_block(int64_t layer) const {
    return count > 0 && (layer + 1) % every == 0 &&
           std::ranges::find(dense_layers, layer) == dense_layers.end();
  }
  RouterRule rule() const { return {.router = router, .renormalise = renormalise}; }
};

// The largest sizes of a model, whether a configuration or a folder sets them. With these limits counts of
// parameters fit int64_t, and lists by block are small.
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
  // A size that is 0 here has no default. The other defaults are computed from these sizes.
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
  bool norm_embeddings = false;  // there is a norm of what the first block reads
  bool norm_plus_one = false;    // an RMSNorm multiplies its normed channels by 1 + weight
  Positions positions = Positions::kLearned;
  Rope rope = {};            // if positions are rotary
  Windows window = {};       // of attention, for each block
  SparseBlocks sparse = {};  // which blocks of keys are seen, for each block
  Mlp mlp = Mlp::kGelu;
  ExpertsConfig experts = {};
  Bias bias = Bias::kAll;
  QkNorm qk_norm = QkNorm::kNone;
  bool tied = true;                       // the logits use the token table
  bool scale_embeddings = false;          // rows of the token table are multiplied by sqrt(C)
  double embedding_scale = 1;             // and by this
  double residual_scale = 1;              // multiplies what attention and the MLP add to the residual stream
  double logit_divisor = 1;               // the logits are divided by it
  double logit_cap = 0;                   // c: the logits l become c tanh(l / c); 0: no cap
  double attention_cap = 0;               // c: a score s of attention becomes c tanh(s / c); 0: no cap
  bool attention_sinks = false;           // the softmax of each head has one more score, which has no key
  bool scale_attention = true;            // scores are divided by sqrt(query_scalar)
  int64_t query_scalar = 0;               // 0: D
  bool scale_attention_by_layer = false;  // scores of block l are also divided by l + 1
  DropoutConfig dropout = {};             // only in training
  LoraConfig lora = {};                   // adapters, which are parameters as well

  bool operator==(const ModelConfig&) const = default;
  int64_t qkv_heads() const { return heads + 2 * kv_heads; }
  bool gated() const { return is_gated(mlp); }
  bool has_qk_norm() const { return qk_norm != QkNorm::kNone; }
  float norm_offset() const { return norm_plus_one ? 1.0f : 0.0f; }
  bool has_out_bias() const { return bias == Bias::kAll || bias == Bias::kAttention; }  // of W_O
  bool has_qkv_bias() const { return has_out_bias() || bias == Bias::kQkv; }
  bool has_mlp_bias() const { return bias == Bias::kAll || bias == Bias::kMlp; }
  // R, the channels of a head that are rotated: a share of the head, rounded down as transformers does
  int64_t rotated_channels() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * rope.share);
  }
  int64_t attention_width() const { return heads * head_dim; }  // of the output of attention
  int64_t parameters() const;                                   // without the padding
  // The parameters that a token goes through: those of only `active` experts
  int64_t active_parameters() const;
  bool has_dense_blocks() const;
  // The model without adapters: what a folder of weights holds
  ModelConfig base() const {
    ModelConfig model = *this;
    model.lora = {};
    return model;
  }
  // Twice the number of keys that a token of a text of T tokens sees, where its own key counts half: the mean
  // over the tokens and the blocks. It is T if no block has a window or sparse attention.
  double attention_span(double T) const;
  // The same for a document that begins at token `begin` of a sequence and ends before `end`
  double attention_span(int64_t begin, int64_t end) const;
  // FLOPs of training on one token: 6 for each parameter that it goes through, and 6 L H D attention_span()
  // for causal attention, which is half of the full T^2 if there are no windows. A table that is only looked
  // up needs none.
  double flops_of_span(double attention_span) const;
  double flops_per_token(double T) const { return flops_of_span(attention_span(T)); }
  // Rows of the token table. Tensor cores need multiples of 128, so there is padding. It never enters a loss.
  int64_t padded_vocab() const { return (vocab_size + 127) / 128 * 128; }
};

// Calls visit(key, member) for every key of a configuration that describes the model, except model.preset.
// Dropout and adapters do not describe the model: they say how it is trained.
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

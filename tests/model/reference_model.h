// The transformer in fp64, straight from its formulas: what the model is held against in every variant.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "model/dropout.h"
#include "tests/support.h"

namespace tessera::testing {

class ReferenceModel {
 public:
  using Values = std::vector<double>;

  explicit ReferenceModel(const ModelConfig& config) : config_(config) {}

  // By their names in ParamInfo; matrices are [out, in], tables without padding matter in their first V rows.
  std::map<std::string, Values> weights;
  ActiveDropout dropout;
  int64_t sequence_length = 0;  // in which documents lie, for sparse blocks; 0: each begins a sequence

  // Mean loss of sequences of T tokens, over those that have a target.
  double loss(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t T) const {
    return loss(tokens, targets, std::vector(tokens.size() / static_cast<size_t>(T), T));
  }
  // The same of sequences of these lengths, each computed alone
  double loss(std::span<const int32_t> tokens, std::span<const int32_t> targets,
              const std::vector<int64_t>& lengths) const {
    double sum = 0;
    size_t first = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const auto length = static_cast<size_t>(lengths[i]);
      sum +=
          loss_of_one(tokens.subspan(first, length), targets.subspan(first, length), static_cast<uint32_t>(i),
                      sequence_length > 0 ? static_cast<int64_t>(first) % sequence_length : 0);
      first += length;
    }
    return sum / static_cast<double>(counted(targets));
  }

 private:
  const Values& of(const std::string& name) const { return weights.at(name); }

  // What an element is multiplied by
  static double factor(const Dropout& drop, uint32_t batch, uint32_t head, uint32_t row, uint32_t column) {
    if (!drop) return 1;
    const bool kept = DropoutMask(drop).kept(batch, head, row, column / 32) >> column % 32 & 1;
    return kept ? 256.0 / (256 - drop.threshold) : 0;
  }
  void drop(Values& x, const Dropout& drop, uint32_t batch) const {
    const size_t C = static_cast<size_t>(config_.channels);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] *= factor(drop, batch, 0, static_cast<uint32_t>(i / C), static_cast<uint32_t>(i % C));
  }

  // Rows of `width`, each by its own mean (LayerNorm alone) and mean square; the weights repeat.
  Values norm(const Values& x, const std::string& name, size_t width, bool centred) const {
    Values weight = of(name + ".weight");
    for (double& w : weight) w += config_.norm_plus_one;
    const Values* bias = centred ? &of(name + ".bias") : nullptr;
    const auto C = static_cast<double>(width);
    Values y(x.size());
    for (size_t row = 0; row < x.size(); row += width) {
      double mean = 0, variance = 0;
      for (size_t c = 0; centred && c < width; ++c) mean += x[row + c] / C;
      for (size_t c = 0; c < width; ++c) variance += std::pow(x[row + c] - mean, 2) / C;
      const double rstd = 1 / std::sqrt(variance + static_cast<double>(config_.norm_epsilon));
      for (size_t c = 0; c < width; ++c)
        y[row + c] = (x[row + c] - mean) * rstd * weight[c] + (bias ? (*bias)[c] : 0);
    }
    return y;
  }
  Values norm(const Values& x, const std::string& name) const {
    return norm(x, name, static_cast<size_t>(config_.channels), config_.norm == NormKind::kLayerNorm);
  }

  // x [T, in] to [T, out]
  static Values product(const Values& x, const Values& weight, int64_t in, int64_t out) {
    const int64_t T = static_cast<int64_t>(x.size()) / in;
    Values y(static_cast<size_t>(T * out));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i)
          sum += x[static_cast<size_t>(t * in + i)] * weight[static_cast<size_t>(o * in + i)];
        y[static_cast<size_t>(t * out + o)] = sum;
      }
    return y;
  }
  Values linear(const Values& x, const std::string& name, int64_t in, int64_t out, bool bias) const {
    Values y = product(x, of(name + ".weight"), in, out);
    for (size_t i = 0; bias && i < y.size(); ++i) y[i] += of(name + ".bias")[i % static_cast<size_t>(out)];
    return y;
  }

  static double silu(double x) { return x / (1 + std::exp(-x)); }
  static double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  double gate(double g, double up) const {
    if (config_.mlp == Mlp::kClampedSwiglu)
      return silu(1.702 * std::min(g, 7.0)) / 1.702 * (std::clamp(up, -7.0, 7.0) + 1);
    return (config_.mlp == Mlp::kGeglu ? gelu(g) : silu(g)) * up;
  }
  double activation(double x) const {
    switch (config_.mlp) {
      case Mlp::kGelu:
        return gelu(x);
      case Mlp::kGeluExact:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case Mlp::kRelu:
        return std::max(x, 0.0);
      case Mlp::kRelu2:
        return std::max(x, 0.0) * std::max(x, 0.0);
      case Mlp::kSwiglu:
      case Mlp::kGeglu:
      case Mlp::kClampedSwiglu:
        break;
    }
    return NAN;
  }

  Values mlp(const Values& x, const std::string& name) const {
    const int64_t C = config_.channels, F = config_.mlp_width, T = static_cast<int64_t>(x.size()) / C;
    const bool bias = config_.has_mlp_bias();
    const Values wide = linear(x, name + "expand", C, config_.gated() ? 2 * F : F, bias);
    Values hidden(static_cast<size_t>(T * F));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t f = 0; f < F; ++f)
        hidden[static_cast<size_t>(t * F + f)] =
            config_.gated()
                ? gate(wide[static_cast<size_t>(t * 2 * F + f)], wide[static_cast<size_t>(t * 2 * F + F + f)])
                : activation(wide[static_cast<size_t>(t * F + f)]);
    return linear(hidden, name + "contract", F, C, bias);
  }

  // Rows first .. first + count, each of so many numbers
  static Values rows_of(const Values& all, int64_t first, int64_t count, int64_t columns) {
    return {all.begin() + first * columns, all.begin() + (first + count) * columns};
  }

  Values experts(const Values& x, const std::string& name) const {
    const ExpertsConfig& own = config_.experts;
    const int64_t C = config_.channels, F = own.width, T = static_cast<int64_t>(x.size()) / C;
    const bool bias = config_.has_mlp_bias();
    const Values logits = linear(x, name + "router", C, own.count, bias);
    // A layer of one expert
    const auto layer = [&](const Values& row, const std::string& of_experts, int64_t e, int64_t in,
                           int64_t out) {
      Values all = product(row, rows_of(of(of_experts + ".weight"), e * out, out, in), in, out);
      if (bias) add(all, rows_of(of(of_experts + ".bias"), e, 1, out));
      return all;
    };
    Values y(x.size());
    for (int64_t t = 0; t < T; ++t) {
      std::vector<std::pair<double, int64_t>> order;  // the largest logit first
      double of_all = 0, of_chosen = 0;
      for (int64_t e = 0; e < own.count; ++e) {
        order.emplace_back(-logits[static_cast<size_t>(t * own.count + e)], e);
        of_all += std::exp(-order.back().first);
      }
      std::sort(order.begin(), order.end());
      order.resize(static_cast<size_t>(own.active));
      if (own.shared_width > 0) {
        const Values row = rows_of(x, t, 1, C);
        const int64_t S = own.shared_width;
        const Values wide = linear(row, name + "shared_expand", C, 2 * S, false);
        Values hidden(static_cast<size_t>(S));
        for (size_t f = 0; f < hidden.size(); ++f) hidden[f] = gate(wide[f], wide[hidden.size() + f]);
        const Values one = linear(hidden, name + "shared_contract", S, C, false);
        const double weight = 1 / (1 + std::exp(-linear(row, name + "shared_gate", C, 1, false)[0]));
        for (int64_t c = 0; c < C; ++c)
          y[static_cast<size_t>(t * C + c)] += weight * one[static_cast<size_t>(c)];
      }
      for (const auto& [logit, e] : order) of_chosen += std::exp(-logit);
      for (const auto& [logit, e] : order) {
        const Values wide = layer(rows_of(x, t, 1, C), name + "expand", e, C, 2 * F);
        Values hidden(static_cast<size_t>(F));
        for (size_t f = 0; f < hidden.size(); ++f) hidden[f] = gate(wide[f], wide[hidden.size() + f]);
        const Values one = layer(hidden, name + "contract", e, F, C);
        const double weight = std::exp(-logit) / (own.rule().sums_to_one() ? of_chosen : of_all);
        for (int64_t c = 0; c < C; ++c)
          y[static_cast<size_t>(t * C + c)] += weight * one[static_cast<size_t>(c)];
      }
    }
    return y;
  }

  // One head of every token: [T, D], of rows with `heads` heads
  Values head_of(const Values& rows, int64_t T, int64_t heads, int64_t head) const {
    const int64_t D = config_.head_dim;
    Values one;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t d = 0; d < D; ++d) one.push_back(rows[static_cast<size_t>((t * heads + head) * D + d)]);
    return one;
  }

  // The keys that a query sees, the last ones; Windows::kFull: all
  int64_t window_of(int64_t layer) const { return config_.window.at(static_cast<size_t>(layer)); }
  double theta_of(int64_t layer) const {
    const bool local = config_.rope.local_theta > 0 && window_of(layer) != Windows::kFull;
    return local ? config_.rope.local_theta : config_.rope.theta;
  }

  // Some heads of qkv, normed together
  void norm_heads(Values& qkv, int64_t heads, int64_t first, int64_t count, const std::string& name) const {
    const auto wide = static_cast<size_t>(count * config_.head_dim),
               from = static_cast<size_t>(first * config_.head_dim),
               row = static_cast<size_t>(heads * config_.head_dim);
    Values some;
    for (size_t at = from; at < qkv.size(); at += row)
      some.insert(some.end(), qkv.begin() + static_cast<ptrdiff_t>(at),
                  qkv.begin() + static_cast<ptrdiff_t>(at + wide));
    some = norm(some, name, wide, false);
    for (size_t i = 0; i < some.size(); ++i) qkv[i / wide * row + from + i % wide] = some[i];
  }

  // Whether sparse blocks show a key to a query, both at their places in the sequence
  bool shows(int64_t layer, int64_t query, int64_t key) const {
    const SparsePattern p = config_.sparse.at(static_cast<size_t>(layer));
    if (p.window == 0) return true;
    const int64_t i = query / p.block, j = key / p.block;
    if (i - j < p.window || j < p.global || (p.stride > 0 && (i - j) % p.stride == 0)) return true;
    return p.random > 0 && std::ranges::count(p.keys_of(i), j) > 0;
  }

  // Whether query t of a document chooses the block of key s, of head_dim elements each
  bool chooses(int64_t layer, const Values& q, const Values& k, int64_t t, int64_t s) const {
    const SparsePattern p = config_.sparse.at(static_cast<size_t>(layer));
    const int64_t D = config_.head_dim, own = t / std::max<int64_t>(p.block, 1),
                  asked = s / std::max<int64_t>(p.block, 1);
    if (p.chosen == 0 || asked == own) return true;
    std::vector<double> scores;
    for (int64_t block = 0; block < own; ++block) {
      double sum = 0;
      for (int64_t j = block * p.block; j < (block + 1) * p.block; ++j)
        for (int64_t d = 0; d < D; ++d)
          sum += q[static_cast<size_t>(t * D + d)] * k[static_cast<size_t>(j * D + d)];
      scores.push_back(sum);
    }
    const double score = scores[static_cast<size_t>(asked)];
    int64_t before = 0;  // blocks that come first
    for (int64_t block = 0; block < own; ++block)
      before += scores[static_cast<size_t>(block)] > score ||
                (scores[static_cast<size_t>(block)] == score && block < asked);
    return before < p.chosen - 1;
  }

  // QK norm and rotation of one head of q or k
  Values positioned(Values x, int64_t T, int64_t layer, const std::string& norm_name) const {
    const int64_t D = config_.head_dim, R = config_.rotated_channels();
    if (config_.qk_norm == QkNorm::kHeads) x = norm(x, norm_name, static_cast<size_t>(D), false);
    if (config_.positions != Positions::kRope) return x;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < R / 2; ++i) {
        const double angle =
            static_cast<double>(t) *
            std::pow(theta_of(layer), -2.0 * static_cast<double>(i) / static_cast<double>(R));
        double &low = x[static_cast<size_t>(t * D + i)], &high = x[static_cast<size_t>(t * D + i + R / 2)];
        const double turned = low * std::cos(angle) - high * std::sin(angle);
        high = high * std::cos(angle) + low * std::sin(angle);
        low = turned;
      }
    return x;
  }

  // The slope of a head, as transformers' build_alibi_tensor has it
  double slope_of(int64_t head) const {
    const auto p = std::pow(2, std::floor(std::log2(config_.heads)));
    const double base = std::pow(2, -std::pow(2, -(std::log2(p) - 3))),
                 extra = std::pow(2, -std::pow(2, -(std::log2(2 * p) - 3)));
    const auto h = static_cast<double>(head);
    return h < p ? std::pow(base, h + 1) : std::pow(extra, 2 * (h - p) + 1);
  }

  Values attention(Values qkv, int64_t T, int64_t layer, const std::string& name, uint32_t batch,
                   int64_t place) const {
    const Dropout drop = dropout.at(DropoutKind::kAttention, static_cast<size_t>(layer));
    const int64_t H = config_.heads, K = config_.kv_heads, D = config_.head_dim;
    const int64_t scalar = config_.query_scalar > 0 ? config_.query_scalar : D;
    const double scale = (config_.scale_attention ? 1 / std::sqrt(static_cast<double>(scalar)) : 1) /
                         (config_.scale_attention_by_layer ? static_cast<double>(layer + 1) : 1);
    if (config_.qk_norm == QkNorm::kAllHeads) {
      norm_heads(qkv, H + 2 * K, 0, H, name + "q_norm");
      norm_heads(qkv, H + 2 * K, H, K, name + "k_norm");
    }
    Values y(static_cast<size_t>(T * H * D));
    for (int64_t h = 0; h < H; ++h) {
      const int64_t shared = h / (H / K);
      const Values q = positioned(head_of(qkv, T, H + 2 * K, h), T, layer, name + "q_norm"),
                   k = positioned(head_of(qkv, T, H + 2 * K, H + shared), T, layer, name + "k_norm"),
                   v = head_of(qkv, T, H + 2 * K, H + K + shared);
      const auto at = [&](int64_t t, int64_t d) { return static_cast<size_t>(t * D + d); };
      for (int64_t t = 0; t < T; ++t) {
        Values p(static_cast<size_t>(t + 1));
        double sum = config_.attention_sinks ? std::exp(of(name + "sinks")[static_cast<size_t>(h)]) : 0;
        const int64_t window = window_of(layer),
                      first = window == Windows::kFull ? 0 : std::max<int64_t>(t + 1 - window, 0);
        for (int64_t s = first; s <= t; ++s) {
          if (!shows(layer, place + t, place + s) || !chooses(layer, q, k, t, s)) continue;
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += q[at(t, d)] * k[at(s, d)];
          const double away =
              config_.positions == Positions::kAlibi ? slope_of(h) * static_cast<double>(t - s) : 0;
          score *= scale;
          if (const double cap = config_.attention_cap; cap > 0) score = cap * std::tanh(score / cap);
          sum += p[static_cast<size_t>(s)] = std::exp(score - away);
        }
        for (int64_t s = first; s <= t; ++s) {
          const double kept = p[static_cast<size_t>(s)] / sum *
                              factor(drop, batch, static_cast<uint32_t>(h), static_cast<uint32_t>(t),
                                     static_cast<uint32_t>(s));
          for (int64_t d = 0; d < D; ++d) y[static_cast<size_t>((t * H + h) * D + d)] += kept * v[at(s, d)];
        }
      }
    }
    return y;
  }

  static void add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  double loss_of_one(std::span<const int32_t> tokens, std::span<const int32_t> targets, uint32_t batch,
                     int64_t place) const {
    const int64_t T = static_cast<int64_t>(tokens.size()), C = config_.channels, V = config_.vocab_size,
                  wide = config_.head_dim * config_.heads;
    const Values& table = of("token_table");
    Values x(static_cast<size_t>(T * C));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t c = 0; c < C; ++c)
        x[static_cast<size_t>(t * C + c)] =
            config_.embedding_scale * (config_.scale_embeddings ? std::sqrt(static_cast<double>(C)) : 1) *
                table[static_cast<size_t>(tokens[static_cast<size_t>(t)] * C + c)] +
            (config_.positions == Positions::kLearned ? of("position_table")[static_cast<size_t>(t * C + c)]
                                                      : 0);
    if (config_.norm_embeddings) x = norm(x, "embedding_norm");
    drop(x, dropout.at(DropoutKind::kEmbedding), batch);
    for (int64_t l = 0; l < config_.layers; ++l) {
      const auto add_branch = [&](Values branch, DropoutKind kind) {
        drop(branch, dropout.at(kind, static_cast<size_t>(l)), batch);
        for (double& value : branch) value *= config_.residual_scale;
        add(x, branch);
      };
      const std::string block = "blocks." + std::to_string(l) + ".", inside = block + "attention.";
      const auto normed_after = [&](const Values& branch, const char* name) {
        return config_.norm_place != NormPlace::kBefore ? norm(branch, block + name) : branch;
      };
      const auto normed_before = [&](const char* name) {
        return config_.norm_place != NormPlace::kAfter ? norm(x, block + name) : x;
      };
      const Values qkv =
          linear(normed_before("norm1"), inside + "qkv", C,
                 (config_.heads + 2 * config_.kv_heads) * config_.head_dim, config_.has_qkv_bias());
      add_branch(normed_after(linear(attention(qkv, T, l, inside, batch, place), inside + "out", wide, C,
                                     config_.has_out_bias()),
                              "norm1_after"),
                 DropoutKind::kAttentionBranch);
      const Values of_mlp = normed_before("norm2");
      const bool mixture = config_.experts.in_block(l);
      add_branch(normed_after(mixture ? experts(of_mlp, block + "experts.") : mlp(of_mlp, block + "mlp."),
                              "norm2_after"),
                 DropoutKind::kMlpBranch);
    }
    Values logits = config_.tied ? product(norm(x, "norm"), of("token_table"), C, V)
                                 : product(norm(x, "norm"), of("head.weight"), C, V);
    const double cap = config_.logit_cap;
    for (double& logit : logits) logit /= config_.logit_divisor;
    for (double& logit : logits) logit = cap > 0 ? cap * std::tanh(logit / cap) : logit;
    double loss = 0;
    for (int64_t t = 0; t < T; ++t) {
      if (targets[static_cast<size_t>(t)] == kNoTarget) continue;
      double sum = 0;
      for (int64_t v = 0; v < V; ++v) sum += std::exp(logits[static_cast<size_t>(t * V + v)]);
      loss += std::log(sum) - logits[static_cast<size_t>(t * V + targets[static_cast<size_t>(t)])];
    }
    return loss;
  }

  ModelConfig config_;
};

}  // namespace tessera::testing

// GPT-2 in fp64, straight from its formulas: what the model is held against in every variant.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "tests/support.h"

namespace tessera::testing {

class ReferenceModel {
 public:
  using Values = std::vector<double>;

  explicit ReferenceModel(const ModelConfig& config) : config_(config) {}

  // By Hugging Face's names; matrices are [out, in], tables without padding matter in their first V rows.
  std::map<std::string, Values> weights;

  // Mean loss of sequences of T tokens.
  double loss(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t T) const {
    double sum = 0;
    for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(T))
      sum += loss_of_one(tokens.subspan(first, static_cast<size_t>(T)),
                         targets.subspan(first, static_cast<size_t>(T)));
    return sum / static_cast<double>(tokens.size());
  }

 private:
  const Values& of(const std::string& name) const { return weights.at(name); }

  Values norm(const Values& x, const std::string& name) const {
    const auto C = static_cast<size_t>(config_.channels);
    const Values &weight = of(name + ".weight"), &bias = of(name + ".bias");
    Values y(x.size());
    for (size_t row = 0; row < x.size(); row += C) {
      double mean = 0, variance = 0;
      for (size_t c = 0; c < C; ++c) mean += x[row + c] / static_cast<double>(C);
      for (size_t c = 0; c < C; ++c) variance += std::pow(x[row + c] - mean, 2) / static_cast<double>(C);
      const double rstd = 1 / std::sqrt(variance + static_cast<double>(config_.norm_epsilon));
      for (size_t c = 0; c < C; ++c) y[row + c] = (x[row + c] - mean) * rstd * weight[c] + bias[c];
    }
    return y;
  }

  // x [T, in] to [T, out]
  Values linear(const Values& x, const std::string& name, int64_t in, int64_t out,
                bool has_bias = true) const {
    const int64_t T = static_cast<int64_t>(x.size()) / in;
    const Values& weight = of(name + ".weight");
    const Values* bias = has_bias ? &of(name + ".bias") : nullptr;
    Values y(static_cast<size_t>(T * out));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t o = 0; o < out; ++o) {
        double sum = bias ? (*bias)[static_cast<size_t>(o)] : 0;
        for (int64_t i = 0; i < in; ++i)
          sum += x[static_cast<size_t>(t * in + i)] * weight[static_cast<size_t>(o * in + i)];
        y[static_cast<size_t>(t * out + o)] = sum;
      }
    return y;
  }

  double activation(double x) const {
    switch (config_.mlp) {
      case Mlp::kGelu:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Mlp::kGeluExact:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case Mlp::kRelu:
        return std::max(x, 0.0);
    }
    return NAN;
  }

  Values attention(const Values& qkv, int64_t T, int64_t layer) const {
    const int64_t C = config_.channels, D = config_.head_dim;
    const double scale = (config_.scale_attention ? 1 / std::sqrt(static_cast<double>(D)) : 1) /
                         (config_.scale_attention_by_layer ? static_cast<double>(layer + 1) : 1);
    const auto element = [&](int64_t t, int64_t which, int64_t channel) {
      return qkv[static_cast<size_t>(t * 3 * C + which * C + channel)];
    };
    Values y(static_cast<size_t>(T * C));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t h = 0; h < config_.heads; ++h) {
        Values p(static_cast<size_t>(t + 1));
        double sum = 0;
        for (int64_t s = 0; s <= t; ++s) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += element(t, 0, h * D + d) * element(s, 1, h * D + d);
          sum += p[static_cast<size_t>(s)] = std::exp(scale * score);
        }
        for (int64_t s = 0; s <= t; ++s)
          for (int64_t d = 0; d < D; ++d)
            y[static_cast<size_t>(t * C + h * D + d)] +=
                p[static_cast<size_t>(s)] / sum * element(s, 2, h * D + d);
      }
    return y;
  }

  static void add(Values& x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  double loss_of_one(std::span<const int32_t> tokens, std::span<const int32_t> targets) const {
    const int64_t T = static_cast<int64_t>(tokens.size()), C = config_.channels, F = config_.mlp_width,
                  V = config_.vocab_size;
    const Values &table = of("token_table"), &positions = of("position_table");
    Values x(static_cast<size_t>(T * C));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t c = 0; c < C; ++c)
        x[static_cast<size_t>(t * C + c)] =
            table[static_cast<size_t>(tokens[static_cast<size_t>(t)] * C + c)] +
            positions[static_cast<size_t>(t * C + c)];
    for (int64_t l = 0; l < config_.layers; ++l) {
      const std::string block = "transformer.h." + std::to_string(l) + ".";
      const Values qkv = linear(norm(x, block + "ln_1"), block + "attn.c_attn", C, 3 * C);
      add(x, linear(attention(qkv, T, l), block + "attn.c_proj", C, C));
      Values hidden = linear(norm(x, block + "ln_2"), block + "mlp.c_fc", C, F);
      for (double& value : hidden) value = activation(value);
      add(x, linear(hidden, block + "mlp.c_proj", F, C));
    }
    const Values logits =
        linear(norm(x, "transformer.ln_f"), config_.tied ? "transformer.wte" : "lm_head", C, V, false);
    double loss = 0;
    for (int64_t t = 0; t < T; ++t) {
      double sum = 0;
      for (int64_t v = 0; v < V; ++v) sum += std::exp(logits[static_cast<size_t>(t * V + v)]);
      loss += std::log(sum) - logits[static_cast<size_t>(t * V + targets[static_cast<size_t>(t)])];
    }
    return loss;
  }

  ModelConfig config_;
};

}  // namespace tessera::testing

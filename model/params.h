// Params: the weights of a GPT. The same struct holds their gradients, fp32 masters and optimizer moments.
//
// for_each_param() is the single list of parameters: allocation, initialisation, weight decay, checkpoints,
// gradient norms and gradient checks all visit it.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "model/config.h"

namespace tessera {

struct BlockParams {
  Tensor norm1_weight, norm1_bias;        // [C]
  Tensor qkv_weight, qkv_bias;            // [3C, C] [3C]
  Tensor out_weight, out_bias;            // [C, C] [C]      W_O
  Tensor norm2_weight, norm2_bias;        // [C]
  Tensor expand_weight, expand_bias;      // [4C, C] [4C]
  Tensor contract_weight, contract_bias;  // [C, 4C] [C]
};

struct Params {
  Tensor token_table;     // [padded V, C], tied: it also computes the logits
  Tensor position_table;  // [context, C]
  std::vector<BlockParams> blocks;
  Tensor norm_weight, norm_bias;  // [C]
};
using Grads = Params;

enum class Init {
  kZero,
  kOne,
  kNormal,
  kNormalResidual
};  // residual: 0.02 / sqrt(2 L), what adds to the residual stream

struct ParamInfo {
  std::string name;  // as Hugging Face's GPT2LMHeadModel calls it
  Shape shape;
  Init init;
  bool decay = false;   // weight decay applies: matrices only
  bool conv1d = false;  // Hugging Face keeps this matrix transposed, [in, out]
  int64_t padding = 0;  // rows at the end that exist here only and stay zero
};

// Calls visit(ParamInfo, Tensor&) for every parameter, in the order of the forward. P is Params or const
// Params.
template <class P, class Visit>
void for_each_param(P& params, const ModelConfig& config, Visit&& visit) {
  const int64_t C = config.channels, V = config.padded_vocab();
  const auto matrix = [&](std::string name, Shape shape, Init init, auto& tensor) {
    visit(ParamInfo{std::move(name), shape, init, true, true, 0}, tensor);
  };
  const auto vector = [&](std::string name, int64_t size, Init init, auto& tensor) {
    visit(ParamInfo{std::move(name), {size}, init, false, false, 0}, tensor);
  };
  visit(ParamInfo{"transformer.wte.weight", {V, C}, Init::kNormal, true, false, V - config.vocab_size},
        params.token_table);
  visit(ParamInfo{"transformer.wpe.weight", {config.context, C}, Init::kNormal, true, false, 0},
        params.position_table);
  for (size_t l = 0; l < params.blocks.size(); ++l) {
    auto& b = params.blocks[l];
    const std::string at = "transformer.h." + std::to_string(l) + ".";
    vector(at + "ln_1.weight", C, Init::kOne, b.norm1_weight);
    vector(at + "ln_1.bias", C, Init::kZero, b.norm1_bias);
    matrix(at + "attn.c_attn.weight", {3 * C, C}, Init::kNormal, b.qkv_weight);
    vector(at + "attn.c_attn.bias", 3 * C, Init::kZero, b.qkv_bias);
    matrix(at + "attn.c_proj.weight", {C, C}, Init::kNormalResidual, b.out_weight);
    vector(at + "attn.c_proj.bias", C, Init::kZero, b.out_bias);
    vector(at + "ln_2.weight", C, Init::kOne, b.norm2_weight);
    vector(at + "ln_2.bias", C, Init::kZero, b.norm2_bias);
    matrix(at + "mlp.c_fc.weight", {4 * C, C}, Init::kNormal, b.expand_weight);
    vector(at + "mlp.c_fc.bias", 4 * C, Init::kZero, b.expand_bias);
    matrix(at + "mlp.c_proj.weight", {C, 4 * C}, Init::kNormalResidual, b.contract_weight);
    vector(at + "mlp.c_proj.bias", C, Init::kZero, b.contract_bias);
  }
  vector("transformer.ln_f.weight", C, Init::kOne, params.norm_weight);
  vector("transformer.ln_f.bias", C, Init::kZero, params.norm_bias);
}

// One tensor a parameter; `kind` leads its name in the memory report, as in "weights transformer.wte.weight".
Params allocate_params(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                       const ModelConfig& config);

}  // namespace tessera

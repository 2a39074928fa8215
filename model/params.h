// Params: the weights of a GPT. The same struct holds their gradients.
//
// for_each_param() is the single list of parameters: allocation, initialisation, weight decay, checkpoints
// and gradient checks all visit it.
//
// Parameters are stored in buckets: one flat tensor for each block, and one for the parameters outside the
// blocks. A bucket is the unit of clearing, reduction between ranks, update and gathering. Parameters with
// weight decay come first, then the others; each begins at a multiple of kParamAlignment elements, and the
// gaps stay zero.
#pragma once

#include <functional>
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
  Tensor expand_weight, expand_bias;      // [F, C] [F]
  Tensor contract_weight, contract_bias;  // [C, F] [C]
};

struct Params {
  Tensor token_table;     // [padded V, C]
  Tensor position_table;  // [context, C]
  std::vector<BlockParams> blocks;
  Tensor norm_weight, norm_bias;  // [C]
  Tensor head_weight;             // [padded V, C]; none if the logits use the token table

  std::vector<Tensor> buckets;  // the tensors above are views of these: see ParamLayout

  const Tensor& classifier() const { return head_weight ? head_weight : token_table; }
};
using Grads = Params;

enum class Init {
  kZero,
  kOne,
  kNormal,
  kNormalResidual
};  // residual: 0.02 / sqrt(2 L), for matrices that add to the residual stream

struct ParamInfo {
  std::string name;  // in Hugging Face's GPT2LMHeadModel
  Shape shape;
  Init init;
  bool decay = false;   // weight decay applies: matrices only
  bool conv1d = false;  // Hugging Face keeps this matrix transposed, [in, out]
  int64_t padding = 0;  // extra rows at the end, which stay zero and are not saved
  int64_t block = -1;   // its block; -1: none
};

inline constexpr const char* kPositionTable = "transformer.wpe.weight";

// Calls visit(ParamInfo, Tensor&) for every parameter, in the order of the forward. P is Params or const
// Params.
template <class P, class Visit>
void for_each_param(P& params, const ModelConfig& config, Visit&& visit) {
  const int64_t C = config.channels, F = config.mlp_width, V = config.padded_vocab();
  int64_t block = -1;
  const auto matrix = [&](std::string name, Shape shape, Init init, auto& tensor) {
    visit(ParamInfo{std::move(name), shape, init, true, true, 0, block}, tensor);
  };
  const auto vector = [&](std::string name, int64_t size, Init init, auto& tensor) {
    visit(ParamInfo{std::move(name), {size}, init, false, false, 0, block}, tensor);
  };
  const auto table = [&](std::string name, auto& tensor) {
    visit(ParamInfo{std::move(name), {V, C}, Init::kNormal, true, false, V - config.vocab_size}, tensor);
  };
  table("transformer.wte.weight", params.token_table);
  visit(ParamInfo{kPositionTable, {config.context, C}, Init::kNormal, true, false, 0}, params.position_table);
  for (size_t l = 0; l < params.blocks.size(); ++l) {
    auto& b = params.blocks[l];
    block = static_cast<int64_t>(l);
    const std::string at = "transformer.h." + std::to_string(l) + ".";
    vector(at + "ln_1.weight", C, Init::kOne, b.norm1_weight);
    vector(at + "ln_1.bias", C, Init::kZero, b.norm1_bias);
    matrix(at + "attn.c_attn.weight", {3 * C, C}, Init::kNormal, b.qkv_weight);
    vector(at + "attn.c_attn.bias", 3 * C, Init::kZero, b.qkv_bias);
    matrix(at + "attn.c_proj.weight", {C, C}, Init::kNormalResidual, b.out_weight);
    vector(at + "attn.c_proj.bias", C, Init::kZero, b.out_bias);
    vector(at + "ln_2.weight", C, Init::kOne, b.norm2_weight);
    vector(at + "ln_2.bias", C, Init::kZero, b.norm2_bias);
    matrix(at + "mlp.c_fc.weight", {F, C}, Init::kNormal, b.expand_weight);
    vector(at + "mlp.c_fc.bias", F, Init::kZero, b.expand_bias);
    matrix(at + "mlp.c_proj.weight", {C, F}, Init::kNormalResidual, b.contract_weight);
    vector(at + "mlp.c_proj.bias", C, Init::kZero, b.contract_bias);
  }
  block = -1;
  vector("transformer.ln_f.weight", C, Init::kOne, params.norm_weight);
  vector("transformer.ln_f.bias", C, Init::kZero, params.norm_bias);
  if (!config.tied) table("lm_head.weight", params.head_weight);
}

inline constexpr int64_t kParamAlignment = 128;  // elements: 256 bytes in bf16, as Arena::kAlignment

struct ParamBucket {
  std::string name;  // "embeddings and final norm", "block 3"
  int64_t decayed;   // elements before this decay, the others do not
  int64_t elements;  // a multiple of kParamAlignment times the number of parts
};
struct ParamPlace {
  ParamInfo info;
  size_t bucket;
  int64_t first;  // element of the bucket
};

// The place of every parameter. Buckets can be split into `parts` equal parts, one for each rank; the places
// do not depend on it.
struct ParamLayout {
  static constexpr size_t kOutside = 0;  // the bucket of the parameters outside the blocks
  static size_t bucket_of_block(int64_t layer) { return static_cast<size_t>(layer) + 1; }

  ParamLayout(const ModelConfig& config, int64_t parts);
  Tensor view(const std::vector<Tensor>& buckets, const ParamPlace& place) const;
  Params params(const ModelConfig& config, std::vector<Tensor> buckets) const;  // views of them

  std::vector<ParamPlace> places;  // in the order of for_each_param
  std::vector<ParamBucket> buckets;
};

// `kind` leads the buckets' names in the memory report, as in "weights block 3".
std::vector<Tensor> allocate_buckets(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                                     const ParamLayout& layout, int64_t parts = 1);  // one part of each
Params allocate_params(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                       const ModelConfig& config, int64_t parts = 1);

// Takes the values of one parameter, fp32 on the host.
using ParamSink = std::function<void(const ParamPlace& place, const Tensor& values)>;

}  // namespace tessera

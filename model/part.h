// What the parts of a model share: how a weight is described.
//
// A part is a struct of weights, with one visit of them; the same struct holds their gradients. Allocation,
// initial values, weight decay, counts, names and checkpoints are walks over the visits.
#pragma once

#include <array>
#include <numeric>
#include <string>

#include "kernels/base/words.h"
#include "kernels/ops.h"
#include "model/config.h"

namespace tessera {

enum class Init : uint8_t {
  kZero,
  kOne,
  kNormal,          // standard deviation 0.02
  kNormalResidual,  // 0.02 / sqrt(2 L), for matrices that add to the residual stream
  kUniform,         // within 1 / sqrt(inputs): the A of an adapter
};

// What train.freeze names: every parameter is of one part.
enum class ParamPart : uint8_t {
  kEmbeddings,  // of tokens and positions; where it is tied, the token table is the classifier, too
  kAttention,
  kMlp,
  kNorms,  // of blocks, of queries and keys, and the final one
  kHead,   // the classifier that is not tied
};
constexpr auto words_of(ParamPart) {
  return std::array{Word{"embeddings", ParamPart::kEmbeddings}, Word{"attention", ParamPart::kAttention},
                    Word{"mlp", ParamPart::kMlp}, Word{"norms", ParamPart::kNorms},
                    Word{"head", ParamPart::kHead}};
}

// The matrices of a linear layer's adapter
enum class AdapterMatrix : uint8_t { kNone, kA, kB };

struct ParamInfo {
  std::string name;  // "blocks.3.attention.qkv.weight"
  Shape shape;
  Init init;
  bool decay = false;   // weight decay applies: matrices only
  int64_t padding = 0;  // extra rows at the end, which stay zero and are not saved
  int64_t block = -1;   // its block; -1: none
  ParamPart part = ParamPart::kEmbeddings;
  AdapterMatrix adapter = AdapterMatrix::kNone;
  LayerParts layers = {};  // of an adapter: the outputs of the layers that are one matrix
  // Of a matrix in a block: the rows of each matrix that it is, as of queries, keys and values
  LayerParts matrices = {};
};

inline bool is_matrix_of_block(const ParamInfo& info) { return info.block >= 0 && info.decay; }

struct LinearWeights {
  Tensor weight, bias;    // [O, I] [O]; bias: none where the model has none
  Tensor lora_a, lora_b;  // [P r, I] [O, r]: the adapter, see LoraForward; none where there is none
};

// Calls visit(ParamInfo, Tensor&) for weights whose names begin with a prefix, or for the adapters of these
// weights.
template <class Visit>
class ParamVisitor {
 public:
  ParamVisitor(Visit& visit, std::string prefix, int64_t block = -1, ParamPart part = ParamPart::kEmbeddings,
               const LoraConfig* adapters = nullptr)
      : visit_(visit), prefix_(std::move(prefix)), block_(block), part_(part), adapters_(adapters) {}

  ParamVisitor below(const char* name) const {
    return {visit_, prefix_ + name + ".", block_, part_, adapters_};
  }
  ParamVisitor of(ParamPart part) const { return {visit_, prefix_, block_, part, adapters_}; }
  ParamVisitor adapters(const LoraConfig& lora) const { return {visit_, prefix_, block_, part_, &lora}; }

  template <class T>
  void matrix(const char* name, Shape shape, Init init, T& tensor, int64_t padding = 0,
              const LayerParts& matrices = {}) const {
    if (adapters_) return;
    visit_(ParamInfo{.name = prefix_ + name,
                     .shape = shape,
                     .init = init,
                     .decay = true,
                     .padding = padding,
                     .block = block_,
                     .part = part_,
                     .matrices = matrices},
           tensor);
  }
  template <class T>
  void vector(const char* name, int64_t size, Init init, T& tensor) const {
    if (adapters_) return;
    visit_(ParamInfo{prefix_ + name, {size}, init, false, 0, block_, part_}, tensor);
  }
  // `layers`: the outputs of the layers that this matrix is, in its rows; `adapted`: of those that have an
  // adapter each, where these are fewer
  template <class L>
  void linear(const char* name, const LayerParts& layers, int64_t in, Init init, bool bias, L& linear,
              const LayerParts& adapted = {}) const {
    const ParamVisitor inside = below(name);
    const int64_t out = std::accumulate(layers.begin(), layers.end(), int64_t{0});
    inside.matrix("weight", {out, in}, init, linear.weight, 0, layers);
    if (bias) inside.vector("bias", out, Init::kZero, linear.bias);
    if (!adapters_ || !adapters_->adapts(part_ == ParamPart::kMlp ? Adapted::kMlp : Adapted::kAttention))
      return;
    const int64_t r = adapters_->rank;
    const LayerParts& each = count_of(adapted) > 0 ? adapted : layers;
    inside.adapter("lora_a", {count_of(each) * r, in}, Init::kUniform, AdapterMatrix::kA, each,
                   linear.lora_a);
    inside.adapter("lora_b", {out, r}, Init::kZero, AdapterMatrix::kB, each, linear.lora_b);
  }

 private:
  template <class T>
  void adapter(const char* name, Shape shape, Init init, AdapterMatrix which, const LayerParts& layers,
               T& tensor) const {
    LayerParts matrices = layers;
    if (which == AdapterMatrix::kA)
      for (int64_t& rows : matrices) rows = rows > 0 ? adapters_->rank : 0;
    visit_(ParamInfo{prefix_ + name, shape, init, true, 0, block_, part_, which, layers, matrices}, tensor);
  }

  Visit& visit_;
  std::string prefix_;
  int64_t block_;
  ParamPart part_;
  const LoraConfig* adapters_;  // none: the weights
};

}  // namespace tessera

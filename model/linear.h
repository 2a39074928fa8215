// Linear: a linear layer of a block, y = x W^T + bias, by its name and sizes. A stage of a block has a list
// of them (stages.h). The layout of the parameters, their counts, FP8 and adapters walk these lists.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>

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

// The parts of a model that train.freeze names. Every parameter belongs to one part.
enum class ParamPart : uint8_t {
  // The tables of tokens and positions, and their norm. If the model is tied, the token table is also the
  // classifier
  kEmbeddings,
  kAttention,
  kMlp,     // also experts
  kRouter,  // of experts
  kNorms,   // of blocks, of queries and keys, and the final norm
  kHead,    // the classifier, if it is not tied
};
constexpr auto words_of(ParamPart) {
  return std::array{Word{"embeddings", ParamPart::kEmbeddings},
                    Word{"attention", ParamPart::kAttention},
                    Word{"mlp", ParamPart::kMlp},
                    Word{"router", ParamPart::kRouter},
                    Word{"norms", ParamPart::kNorms},
                    Word{"head", ParamPart::kHead}};
}

inline constexpr const char* kQkv = "attention.qkv";  // of queries, keys and values

struct Linear {
  const char* name;  // of its tensors in the block: "mlp.expand"
  ParamPart part;    // kAttention, kMlp or kRouter
  LayerParts rows;   // the outputs of each matrix that is stored in it: of q, k and v; of gate and up
  int64_t columns;   // inputs
  bool bias;
  Init init;          // of the weight
  int64_t count = 0;  // the number of experts, whose layers follow one another in each tensor; 0: a single
                      // layer

  int64_t outputs() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
  bool of_experts() const { return count > 0; }
  int64_t layers() const { return std::max<int64_t>(count, 1); }
  Shape matrix_shape(int64_t rows, int64_t of_row) const {
    return of_experts() ? Shape{count, rows, of_row} : Shape{rows, of_row};
  }
  Shape weight_shape() const { return matrix_shape(outputs(), columns); }
  Shape bias_shape() const { return of_experts() ? Shape{count, outputs()} : Shape{outputs()}; }
};

// Whether the layer is multiplied in FP8 if its block is. Routers are not: their logits are in fp32.
inline bool can_be_in_fp8(const Linear& linear) { return linear.part != ParamPart::kRouter; }
// Whether the layer gets an adapter
inline bool adapts(const LoraConfig& lora, const Linear& linear) {
  return lora.adapts(linear.part == ParamPart::kAttention ? Adapted::kAttention
                     : linear.part == ParamPart::kMlp     ? Adapted::kMlp
                                                          : Adapted::kRouter);
}
// The outputs of each layer that has its own A. An expert's layers share one A, as in transformers' memory,
// and so in PEFT.
inline LayerParts adapter_rows(const LoraConfig& lora, const Linear& linear) {
  return lora.split_qkv && !linear.of_experts() ? linear.rows : LayerParts{linear.outputs()};
}

struct LinearWeights {
  Tensor weight, bias;  // [O, I] [O]; with a count [count, O, I] [count, O]; bias may be none
  // The adapter, or none: [P r, I] [O, r], see LoraForward; with a count [count, r, I] [count, O, r]
  Tensor lora_a, lora_b;
};

}  // namespace tessera

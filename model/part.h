// What the parts of a model share: how a parameter is described. A part is a struct of weights; the same
// struct holds their gradients.
#pragma once

#include <optional>
#include <string>

#include "model/linear.h"

namespace tessera {

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
  std::optional<Linear> linear = {};  // of a block, whose weight, bias or adapter this is
};

inline bool is_matrix_of_block(const ParamInfo& info) { return info.linear && info.decay; }

}  // namespace tessera

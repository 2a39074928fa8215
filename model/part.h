// How a parameter is described, for all parts of a model. A part is a struct of weights; the same struct
// holds their gradients.
#pragma once

#include <optional>
#include <string>

#include "model/linear.h"

namespace tessera {

// Which matrix of a linear layer's adapter a parameter is
enum class AdapterMatrix : uint8_t { kNone, kA, kB };

struct ParamInfo {
  std::string name;  // "blocks.3.attention.qkv.weight"
  Shape shape;
  Init init;
  bool decay = false;   // whether weight decay applies: only to matrices
  int64_t padding = 0;  // extra rows at the end, which stay zero and are not saved
  int64_t block = -1;   // the number of its block; -1: it is in none
  ParamPart part = ParamPart::kEmbeddings;
  AdapterMatrix adapter = AdapterMatrix::kNone;
  LayerParts layers = {};  // for an adapter: the outputs of the layers that are stored as one matrix
  // For a matrix in a block: the rows of each matrix that is stored in it, such as queries, keys and values
  LayerParts matrices = {};
  std::optional<Linear> linear = {};  // in a block: the layer whose weight, bias or adapter this is
};

inline bool is_matrix_of_block(const ParamInfo& info) { return info.linear && info.decay; }

}  // namespace tessera

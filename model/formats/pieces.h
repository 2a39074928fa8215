// The tensors of a file that make up a parameter of ours, by the table of the family. Adapters have the names
// and layouts of PEFT (https://github.com/huggingface/peft): an A and a B for each layer of the family.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "model/formats/family.h"

namespace tessera {

// A tensor of a file: rows first .. first + rows of a parameter. Each element of a vector is a row.
struct TensorPiece {
  std::string name;
  int64_t first, rows, columns;
  bool transposed;  // [columns, rows] in the file
  int64_t heads;    // above 0: the rows of q, k and v are [heads, 3, ..] in the file, [3, heads, ..] here
  Shape shape;      // in the file

  int64_t elements() const { return rows * columns; }
};

// How a kind of file names and lays out the tensors of a model; see Family
struct TensorTable {
  std::string_view title;  // for messages
  std::string_view lead, block;
  std::span<const TensorNames> tensors;
};

// All of a parameter but its padding, in the order of its rows. Error: the family has no such parameter.
std::vector<TensorPiece> pieces_of(const TensorTable& table, const ModelConfig& model, const ParamInfo& info);
std::vector<TensorPiece> pieces_of(const Family& family, const ModelConfig& model, const ParamInfo& info);

// out [columns, rows] = from [rows, columns], transposed
void transpose(std::span<const float> from, int64_t rows, int64_t columns, float* out);
// out [inner, outer, ..] = from [outer, inner, ..]
void swap_groups(std::span<const float> from, int64_t outer, int64_t inner, float* out);

// The values of a piece in the order of the file from those in ours, and the reverse; others than plain ones
bool is_plain(const TensorPiece& piece);
void to_file(const TensorPiece& piece, std::span<const float> ours, float* in_file);
void from_file(const TensorPiece& piece, std::span<const float> in_file, float* ours);

}  // namespace tessera

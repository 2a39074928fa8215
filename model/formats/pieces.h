// The tensors of a file that make up one of our parameters, by the table of the family. Adapters have the
// names and layouts of PEFT (https://github.com/huggingface/peft): an A and a B for each layer of the family.
// The two matrices of experts have [E r, I] and [O, r E].
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"
#include "model/formats/family.h"

namespace tessera {

// A tensor of a file: the rows first to first + rows - 1 of a parameter. If the layers of a Linear are
// stacked, it has these rows of each layer. Each element of a vector is a row.
struct TensorPiece {
  std::string name;
  int64_t first, rows, columns;
  bool transposed;                 // it is [columns, rows] in the file
  int64_t outer = 0, inner = 0;    // above 0: rows are [inner, outer, ..] in the file, and [outer, inner, ..]
                                   // here
  int64_t swaps = 1;               // the number of equal parts that are swapped in this way, each by itself
  int64_t layers = 1, stride = 0;  // stride: the rows from the start of a layer to the start of the next
  Shape shape;                     // in the file

  int64_t elements() const { return layers * rows * columns; }
};

// How a kind of file names and lays out the tensors of a model; see Family
struct TensorTable {
  std::string_view title;  // for messages
  std::string_view lead, block;
  std::span<const TensorNames> tensors;
};

// The tensors of a whole parameter without its padding, in the order of its rows. Error: the family has no
// such parameter.
std::vector<TensorPiece> pieces_of(const TensorTable& table, const ModelConfig& model, const ParamInfo& info);
std::vector<TensorPiece> pieces_of(const Family& family, const ModelConfig& model, const ParamInfo& info);

// out [columns, rows] = from [rows, columns], transposed
void transpose(std::span<const float> from, int64_t rows, int64_t columns, float* out);
// Whether PEFT names the adapter of a layer by a parameter, as for experts, and not by a module
bool is_by_parameter(const ModelConfig& model, const ParamInfo& info);
// The names of these parameters: "mlp.experts.gate_up_proj", "mlp.gate.weight"
std::vector<std::string> peft_parameters(const Family& family, const ModelConfig& model,
                                         const ParamInfo& info);

// out [inner, outer, ..] = from [outer, inner, ..]
void swap_groups(std::span<const float> from, int64_t outer, int64_t inner, float* out);

// to_file() converts the values of a parameter to those that the file has for a piece, and from_file() does
// the reverse. A plain piece is `part` of the parameter as it is.
bool is_plain(const TensorPiece& piece);
template <class T>
std::span<T> part(const TensorPiece& piece, std::span<T> parameter) {
  return parameter.subspan(static_cast<size_t>(piece.first * piece.columns),
                           static_cast<size_t>(piece.elements()));
}
void to_file(const TensorPiece& piece, std::span<const float> parameter, std::span<float> in_file);
void from_file(const TensorPiece& piece, std::span<const float> in_file, std::span<float> parameter);

}  // namespace tessera

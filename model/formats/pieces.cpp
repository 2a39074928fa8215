#include "model/formats/pieces.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// The rows of piece `i` of several: each piece is a matrix of the linear layer.
int64_t rows_of(const ParamInfo& info, const ModelConfig& model, size_t i) {
  check(info.linear.has_value(), "{} is in several tensors of a file, and is of no linear layer", info.name);
  return info.adapter == AdapterMatrix::kA ? model.lora.rank : info.linear->rows[i];
}

// A layer's adapter in PEFT, after the name of the layer
const char* peft_name(AdapterMatrix matrix) {
  return matrix == AdapterMatrix::kA ? "lora_A.weight" : "lora_B.weight";
}

}  // namespace

std::vector<TensorPiece> pieces_of(const Family& family, const ModelConfig& model, const ParamInfo& info) {
  return pieces_of(
      TensorTable{
          .title = family.title, .lead = family.lead, .block = family.block, .tensors = family.tensors},
      model, info);
}

std::vector<TensorPiece> pieces_of(const TensorTable& table, const ModelConfig& model,
                                   const ParamInfo& info) {
  std::string lead = info.adapter == AdapterMatrix::kNone ? "" : "base_model.model.";
  std::string_view ours = info.name;
  if (info.block >= 0) {
    lead += std::string(table.lead) + fmt::format(fmt::runtime(table.block), info.block);
    ours = ours.substr(ours.find('.', ours.find('.') + 1) + 1);  // without "blocks.3."
  }
  const int64_t count = info.linear ? info.linear->count : 1;  // of layers, each with tensors of its own
  const bool is_matrix = info.shape.rank() >= 2, is_adapter = info.adapter != AdapterMatrix::kNone;
  const int64_t columns = is_matrix ? info.shape[-1] : 1;
  const int64_t all = info.shape.numel() / columns - info.padding, each = all / count;
  for (const TensorNames& names : table.tensors) {
    if (!ours.starts_with(names.ours) || (names.gated && !model.gated())) continue;
    const std::string rest(is_adapter ? peft_name(info.adapter) : ours.substr(names.ours.size()));
    std::vector<TensorPiece> pieces;
    int64_t first = 0;
    const size_t of_one = static_cast<size_t>(
        std::ranges::find_if(names.theirs, [](std::string_view name) { return name.empty(); }) -
        names.theirs.begin());
    for (size_t at = 0; at < of_one * static_cast<size_t>(count); ++at) {
      const size_t i = at % of_one;
      const int64_t rows = names.theirs[1].empty() ? each : rows_of(info, model, i);
      const bool by_head = names.by_head && info.adapter != AdapterMatrix::kA;
      const bool transposed = names.transposed && is_matrix && !is_adapter;
      const Shape shape = !is_matrix ? Shape{rows} : transposed ? Shape{columns, rows} : Shape{rows, columns};
      const std::string theirs =
          count == 1 ? std::string(names.theirs[i]) : fmt::format(fmt::runtime(names.theirs[i]), at / of_one);
      pieces.push_back({.name = lead + theirs + rest,
                        .first = first,
                        .rows = rows,
                        .columns = columns,
                        .transposed = transposed,
                        .heads = by_head ? model.heads : 0,
                        .shape = shape});
      first += rows;
    }
    check(first == all, "the tensors of {} hold {} rows of {}, which has {}", table.title, first, info.name,
          all);
    return pieces;
  }
  fail("{} has no {}", table.title, info.name);
}

constexpr int64_t kFewElements = 1 << 15;  // one thread handles them faster than several start

void transpose(std::span<const float> from, int64_t rows, int64_t columns, float* out) {
#pragma omp parallel for if (rows * columns > kFewElements)
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) out[c * rows + r] = from[static_cast<size_t>(r * columns + c)];
}

void swap_groups(std::span<const float> from, int64_t outer, int64_t inner, float* out) {
  const int64_t each = std::ssize(from) / (outer * inner);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i)
      std::copy_n(from.data() + (o * inner + i) * each, each, out + (i * outer + o) * each);
}

bool is_plain(const TensorPiece& piece) { return !piece.transposed && piece.heads == 0; }

void to_file(const TensorPiece& piece, std::span<const float> ours, float* in_file) {
  if (piece.transposed) return transpose(ours, piece.rows, piece.columns, in_file);
  swap_groups(ours, 3, piece.heads, in_file);
}

void from_file(const TensorPiece& piece, std::span<const float> in_file, float* ours) {
  if (piece.transposed) return transpose(in_file, piece.columns, piece.rows, ours);
  swap_groups(in_file, piece.heads, 3, ours);
}

}  // namespace tessera

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

// Of the layer with this number
std::string name_of_layer(std::string_view name, size_t layer) {
  return name.find("{}") == name.npos ? std::string(name) : fmt::format(fmt::runtime(name), layer);
}

bool is_router(const Linear& linear) { return std::string_view(linear.name) == "experts.router"; }
bool is_expand(const Linear& linear) { return linear.rows[1] > 0; }

// "base_model.model.model.layers.3."
std::string lead_of_adapters(const Family& family, const ParamInfo& info) {
  return "base_model.model." + std::string(family.lead) + fmt::format(fmt::runtime(family.block), info.block);
}

// The adapter of a router, or of the experts of a block. PEFT wraps the module of experts twice: the second
// matrix is that of the outer one.
TensorPiece piece_of_experts(const Family& family, const ParamInfo& info) {
  const Linear& linear = *info.linear;
  const bool is_b = info.adapter == AdapterMatrix::kB;
  TensorPiece piece{.name = lead_of_adapters(family, info) +
                            std::string(is_router(linear) ? family.modules.router : family.modules.experts) +
                            (linear.of_experts() && is_expand(linear) ? "base_layer." : "") +
                            peft_name(info.adapter),
                    .first = 0,
                    .rows = info.shape.numel() / info.shape[-1],
                    .columns = info.shape[-1],
                    .transposed = is_b && linear.of_experts(),
                    .shape = {info.shape.numel() / info.shape[-1], info.shape[-1]}};
  if (!piece.transposed) return piece;
  const int64_t O = info.shape[1], r = info.shape[2];
  piece.rows = linear.count, piece.columns = O * r, piece.shape = {O, r * linear.count};
  const bool interleaved =
      std::ranges::any_of(family.tensors, [](const TensorNames& names) { return names.interleaved; });
  if (interleaved && is_expand(linear)) piece.outer = 2, piece.inner = O / 2, piece.swaps = linear.count;
  return piece;
}

// Of each of `swaps` equal parts
void swap_parts(int64_t swaps, std::span<const float> from, int64_t outer, int64_t inner, float* out) {
  const size_t each = from.size() / static_cast<size_t>(swaps);
  for (size_t first = 0; first < from.size(); first += each)
    swap_groups(from.subspan(first, each), outer, inner, out + first);
}

}  // namespace

bool is_by_parameter(const ModelConfig& model, const ParamInfo& info) {
  return bool(model.experts) && info.linear && info.linear->part != ParamPart::kAttention;
}

std::vector<std::string> peft_parameters(const Family& family, const ModelConfig& model,
                                         const ParamInfo& info) {
  if (info.linear->of_experts())
    return {std::string(family.modules.experts) + (is_expand(*info.linear) ? "gate_up_proj" : "down_proj")};
  const std::string lead = lead_of_adapters(family, info);
  constexpr std::string_view kEnd = "lora_A.weight";
  std::vector<std::string> names;
  for (const TensorPiece& piece : pieces_of(family, model, info)) {
    const size_t count = piece.name.size() - lead.size() - kEnd.size();
    names.push_back(piece.name.substr(lead.size(), count) + "weight");
  }
  return names;
}

std::vector<TensorPiece> pieces_of(const Family& family, const ModelConfig& model, const ParamInfo& info) {
  if (info.adapter != AdapterMatrix::kNone && (info.linear->of_experts() || is_router(*info.linear)))
    return {piece_of_experts(family, info)};
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
  const int64_t count = info.linear ? info.linear->layers() : 1;
  const bool is_matrix = info.shape.rank() >= (info.linear && info.linear->of_experts() ? 3 : 2),
             is_adapter = info.adapter != AdapterMatrix::kNone;
  const int64_t columns = is_matrix ? info.shape[-1] : 1;
  const int64_t all = info.shape.numel() / columns - info.padding, each = all / count;
  for (const TensorNames& names : table.tensors) {
    if (!ours.starts_with(names.ours) || (names.gated && !model.gated())) continue;
    const std::string rest(is_adapter ? peft_name(info.adapter) : ours.substr(names.ours.size()));
    std::vector<TensorPiece> pieces;
    int64_t first = 0;
    const auto parts = static_cast<size_t>(
        std::ranges::find_if(names.theirs, [](std::string_view name) { return name.empty(); }) -
        names.theirs.begin());
    const int64_t layers = names.stacked ? count : 1;  // of a tensor
    for (size_t at = 0; at < parts * static_cast<size_t>(count / layers); ++at) {
      const size_t i = at % parts;
      const bool by_head = names.by_head && info.adapter != AdapterMatrix::kA;
      TensorPiece piece{.name = lead + name_of_layer(names.theirs[i], at / parts) + rest,
                        .first = first,
                        .rows = parts == 1 ? each : rows_of(info, model, i),
                        .columns = columns,
                        .transposed = names.transposed && is_matrix && !is_adapter,
                        .layers = layers,
                        .stride = each,
                        .shape = {}};
      if (by_head) piece.outer = 3, piece.inner = model.heads;
      if (names.interleaved) piece.outer = 2, piece.inner = each / 2;
      Shape& shape = piece.shape;
      shape = piece.transposed ? Shape{columns, piece.rows} : Shape{piece.rows, columns};
      if (!is_matrix) shape = {piece.rows};
      if (names.stacked) shape = is_matrix ? Shape{layers, shape[0], shape[1]} : Shape{layers, piece.rows};
      first += piece.rows;
      pieces.push_back(std::move(piece));
    }
    check(first * layers == all, "the tensors of {} hold {} rows of {}, which has {}", table.title,
          first * layers, info.name, all);
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

bool is_plain(const TensorPiece& piece) {
  return !piece.transposed && piece.outer == 0 && (piece.layers == 1 || piece.stride == piece.rows);
}

void to_file(const TensorPiece& piece, std::span<const float> parameter, std::span<float> in_file) {
  const int64_t rows = piece.rows, columns = piece.columns, each = rows * columns;
  std::vector<float> swapped(piece.outer > 0 && piece.transposed ? static_cast<size_t>(each) : 0);
  for (int64_t layer = 0; layer < piece.layers; ++layer) {
    std::span<const float> from = parameter.subspan(
        static_cast<size_t>((piece.first + layer * piece.stride) * columns), static_cast<size_t>(each));
    float* const to = in_file.data() + layer * each;
    if (piece.outer > 0) {
      swap_parts(piece.swaps, from, piece.outer, piece.inner, piece.transposed ? swapped.data() : to);
      from = swapped;
    }
    if (piece.transposed)
      transpose(from, rows, columns, to);
    else if (piece.outer == 0)
      std::ranges::copy(from, to);
  }
}

void from_file(const TensorPiece& piece, std::span<const float> in_file, std::span<float> parameter) {
  const int64_t rows = piece.rows, columns = piece.columns, each = rows * columns;
  std::vector<float> turned(piece.outer > 0 && piece.transposed ? static_cast<size_t>(each) : 0);
  for (int64_t layer = 0; layer < piece.layers; ++layer) {
    std::span<const float> from =
        in_file.subspan(static_cast<size_t>(layer * each), static_cast<size_t>(each));
    float* const to = parameter.data() + (piece.first + layer * piece.stride) * columns;
    if (piece.transposed) {
      transpose(from, columns, rows, piece.outer > 0 ? turned.data() : to);
      from = turned;
    }
    if (piece.outer > 0)
      swap_parts(piece.swaps, from, piece.inner, piece.outer, to);
    else if (!piece.transposed)
      std::ranges::copy(from, to);
  }
}

}  // namespace tessera

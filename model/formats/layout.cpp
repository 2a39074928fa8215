#include "model/formats/layout.h"

#include "kernels/base/arena.h"
#include "model/formats/pieces.h"

namespace tessera {

std::vector<ParamPlace> WeightsLayout::order() const { return ParamLayout(model_, 1).places; }

std::vector<FileTensor> WeightsLayout::tensors() const {
  std::vector<FileTensor> all;
  for (const ParamPlace& place : order())
    for (FileTensor& tensor : tensors_of(place.info)) all.push_back(std::move(tensor));
  return all;
}

HuggingFaceLayout::HuggingFaceLayout(const ModelConfig& model, NumberFormat format)
    : WeightsLayout(model), family_(family_for(model)), format_(format) {}

std::vector<FileTensor> HuggingFaceLayout::tensors_of(const ParamInfo& info) const {
  std::vector<FileTensor> tensors;
  for (const TensorPiece& piece : pieces_of(family_, model_, info))
    tensors.push_back({.name = piece.name, .shape = piece.shape, .format = format_});
  return tensors;
}

void HuggingFaceLayout::visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const {
  for (const TensorPiece& piece : pieces_of(family_, model_, info)) {
    const FileTensor tensor{.name = piece.name, .shape = piece.shape, .format = format_};
    const std::span<const float> parameter(values.as<float>(), static_cast<size_t>(values.numel()));
    if (is_plain(piece)) {
      visit(tensor, part(piece, parameter));
      continue;
    }
    Arena staging = Arena::host();
    const Tensor turned = staging.alloc(MemoryTag::kData, info.name, DType::kF32, piece.shape);
    const std::span<float> in_file(turned.as<float>(), static_cast<size_t>(piece.elements()));
    to_file(piece, parameter, in_file);
    visit(tensor, in_file);
  }
}

}  // namespace tessera

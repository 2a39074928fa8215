#include "train/run/nf4_base.h"

#include "model/formats/weights.h"
#include "model/store/stored_forms.h"

namespace tessera {
namespace {

LayerParts small_scales_of(LoraBase base, const ModelConfig& model, const ParamPlace& place) {
  return base == LoraBase::kNf4Double ? stored_rows(place.info, model.lora) : LayerParts{};
}

}  // namespace

bool is_nf4(LoraBase base) { return base == LoraBase::kNf4 || base == LoraBase::kNf4Double; }

Nf4Base compare_nf4_base(const std::filesystem::path& folder, const ModelConfig& model, const BaseForm& base,
                         const FolderOptions& options) {
  const WeightsFolder weights(folder, model.base(), options);
  const ParamLayout layout(model, 1, Freeze::all_but_adapters(),
                           {.frozen_blocks = true, .experts_only = base.experts_only});
  Nf4Base found;
  for (const ParamPlace& place : layout.places) {
    if (place.stored != StoredAs::kOnly) continue;
    if (!weights.has_nf4(place)) {
      ++found.others;
      continue;
    }
    const std::string why = weights.nf4_difference(place, small_scales_of(base.form, model, place));
    if (why.empty())
      ++found.kept;
    else if (found.difference.empty())
      found.difference = why;
  }
  return found;
}

void load_nf4_base(const std::filesystem::path& folder, TrainState& state, const FolderOptions& options) {
  const RunShape& shape = state.shape();
  const WeightsFolder weights(folder, shape.model.base(), options);
  for (const ParamPlace& place : state.store().layout().places) {
    const LayerParts small_scales = small_scales_of(shape.base, shape.model, place);
    if (place.stored != StoredAs::kOnly || !weights.nf4_difference(place, small_scales).empty()) continue;
    weights.read_nf4(place, small_scales, [&](const Tensor& codes, const Tensor& scales) {
      state.store().write_stored(place, {.data = codes, .scales = scales});
    });
  }
}

}  // namespace tessera

#include "train/run/nf4_base.h"

#include "kernels/base/check.h"
#include "model/formats/bitsandbytes.h"
#include "model/formats/mxfp4.h"
#include "model/formats/weights.h"
#include "model/store/stored_forms.h"
#include "train/session/from_config.h"

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

BaseForms compare_forms(const std::filesystem::path& folder, const Config& config) {
  const auto& base = config.train.lora_base;
  const bool of_experts = base.of_experts(config.model);
  BaseForms forms{.is_kept = base.form == LoraBase::kMxfp4 && of_experts && is_in_mxfp4(folder)};
  if (!is_in_nf4(folder)) return forms;
  const auto found_as = [&](LoraBase form) {
    return compare_nf4_base(folder, model_config(config), {.form = form, .experts_only = of_experts},
                            folder_options(config));
  };
  const Nf4Base plain = found_as(LoraBase::kNf4), with_small_scales = found_as(LoraBase::kNf4Double);
  const bool is_double = with_small_scales.kept > 0 && with_small_scales.difference.empty();
  const std::string name = folder.string();
  check(base.form != LoraBase::kNf4Double || with_small_scales.difference.empty(),
        "{} is stored in NF4, and train.lora.base=nf4_double would round scales again: {}. Set "
        "train.lora.base=nf4, which keeps them in fp32",
        name, with_small_scales.difference);
  if (base.form == LoraBase::kNf4Double) forms.is_kept = with_small_scales.is_kept();
  if (base.form == LoraBase::kNf4) forms.is_kept = plain.is_kept();
  if (base.form == LoraBase::kNf4 && !plain.difference.empty())
    forms.notices.push_back(
        fmt::format("{} is stored in NF4, and train.lora.base=nf4 rounds some matrices again: {}", name,
                    plain.difference));
  else if (base.form == LoraBase::kNf4 && is_double)
    forms.notices.push_back(
        fmt::format("{} is stored in NF4 with scales in 8 bits, which train.lora.base=nf4 widens: set "
                    "train.lora.base=nf4_double to keep the same values in 4.127 bits",
                    name));
  else if (base.form == LoraBase::kAuto && plain.difference.empty())
    forms.notices.push_back(
        fmt::format("{} is stored in NF4, and train.lora.base=auto widens it: set train.lora.base={} to keep "
                    "the same values in {} bits",
                    name, is_double ? "nf4_double" : "nf4", is_double ? "4.127" : "4.5"));
  return forms;
}

std::vector<std::string> compare_with_nf4(const StoredFolder& of) {
  if (of.folder.empty() || !is_in_nf4(of.folder)) return {};
  check(!of.scales_in_8_bits,
        "{} is stored in NF4, and {}=nf4_double would round its scales again: set {}=nf4, which keeps its "
        "values",
        of.folder, of.key, of.key);
  if (!of.widened) return {};
  return {fmt::format(
      "{} is stored in NF4, and {}=auto widens it: set {}=nf4 to keep the same values in 4.5 bits", of.folder,
      of.key, of.key)};
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

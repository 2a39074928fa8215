#include "train/run/nf4_base.h"

#include "kernels/base/check.h"
#include "model/formats/bitsandbytes.h"
#include "model/formats/mxfp4.h"
#include "model/formats/weights.h"
#include "model/store/stored_forms.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

LayerParts small_scales_of(BaseForm base, const ModelConfig& model, const ParamPlace& place) {
  return base == BaseForm::kNf4Double ? stored_rows(place.info, model.lora) : LayerParts{};
}

}  // namespace

bool is_nf4(BaseForm base) { return base == BaseForm::kNf4 || base == BaseForm::kNf4Double; }

Nf4Folder compare_nf4_base(const WeightsFolder& weights, const ModelConfig& model, bool experts_only) {
  const ParamLayout layout(model, 1, Freeze::all_but_adapters(),
                           {.frozen_blocks = true, .experts_only = experts_only});
  const auto found_as = [&](BaseForm form) {
    Nf4Base found;
    for (const ParamPlace& place : layout.places) {
      if (place.stored != StoredAs::kOnly) continue;
      if (!weights.has_nf4(place)) {
        ++found.others;
        continue;
      }
      const std::string why = weights.nf4_difference(place, small_scales_of(form, model, place));
      if (why.empty())
        ++found.kept;
      else if (found.difference.empty())
        found.difference = why;
    }
    return found;
  };
  return {.nf4 = found_as(BaseForm::kNf4), .nf4_double = found_as(BaseForm::kNf4Double)};
}

ComparedBase compare_forms(const std::filesystem::path& folder, const Config& config) {
  const auto& base = config.train.lora_base;
  const bool of_experts = base.of_experts(config.model);
  if (!is_in_nf4(folder))
    return {.is_kept = base.form == BaseForm::kMxfp4 && of_experts && is_in_mxfp4(folder)};
  const ModelConfig model = model_config(config);
  const Nf4Folder found =
      compare_nf4_base(WeightsFolder(folder, model.base(), folder_options(config)), model, of_experts);
  ComparedBase forms{
      .notices = compare_with_nf4(
          {.folder = folder.string(), .key = "train.lora.base", .form = base.form, .kept = &found})};
  if (base.form == BaseForm::kNf4Double) forms.is_kept = found.nf4_double.is_kept();
  if (base.form != BaseForm::kNf4) return forms;
  forms.is_kept = found.nf4.is_kept();
  if (!found.nf4.difference.empty())
    forms.notices.push_back(
        fmt::format("{} is stored in NF4, and train.lora.base=nf4 rounds some matrices again: {}",
                    folder.string(), found.nf4.difference));
  else if (found.is_double())
    forms.notices.push_back(
        fmt::format("{} is stored in NF4 with scales in 8 bits, which train.lora.base=nf4 widens: set "
                    "train.lora.base=nf4_double to keep the same values in 4.127 bits",
                    folder.string()));
  return forms;
}

std::vector<std::string> compare_with_nf4(const StoredFolder& of) {
  if (of.folder.empty() || !is_in_nf4(of.folder)) return {};
  const Nf4Folder* kept = of.kept;
  check(of.form != BaseForm::kNf4Double || (kept && kept->nf4_double.difference.empty()),
        "{} is stored in NF4, and {}=nf4_double would round scales again{}: set {}=nf4, which keeps them",
        of.folder, of.key, kept ? fmt::format(" ({})", kept->nf4_double.difference) : "", of.key);
  if (of.form != BaseForm::kAuto || (kept && !kept->nf4.difference.empty())) return {};
  const bool is_double = kept && kept->is_double();
  return {
      fmt::format("{} is stored in NF4, and {}=auto widens it: set {}={} to keep the same values in {} bits",
                  of.folder, of.key, of.key, is_double ? "nf4_double" : "nf4", is_double ? "4.127" : "4.5")};
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

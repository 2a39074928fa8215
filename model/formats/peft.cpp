#include "model/formats/peft.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/json_text.h"
#include "model/formats/pieces.h"
#include "model/formats/weights.h"

namespace tessera {
namespace {

constexpr AdaptedParts kAllParts = AdaptedParts::of({Adapted::kAttention, Adapted::kMlp, Adapted::kRouter});

// The layers with an adapter, as PEFT finds them: by the end of their names. "q_proj"; "attn.c_proj" where
// another layer ends the same. None that are named by parameters
std::vector<std::string> target_modules(const ModelConfig& model) {
  constexpr std::string_view kEnd = ".lora_A.weight";
  const auto layers_of = [&](AdaptedParts parts) {
    ModelConfig one = model;
    one.layers = 1;
    one.lora.parts = parts;
    std::vector<std::string> layers;
    for (const ParamPlace& place : ParamLayout(one, 1).places)
      if (place.info.adapter == AdapterMatrix::kA && !is_by_parameter(model, place.info))
        for (const TensorPiece& piece : pieces_of(family_for(model), one, place.info))
          layers.push_back(piece.name.substr(0, piece.name.size() - kEnd.size()));
    return layers;
  };
  const auto last = [](const std::string& name, size_t words) {
    size_t at = name.size();
    for (; words > 0; --words) at = name.rfind('.', at - 1);
    return name.substr(at + 1);
  };
  std::map<std::string, int> count;
  for (const std::string& layer : layers_of(kAllParts)) ++count[last(layer, 1)];
  std::vector<std::string> targets;
  for (const std::string& layer : layers_of(model.lora.parts))
    targets.push_back(last(layer, count[last(layer, 1)] == 1 ? 1 : 2));
  return targets;
}

// What transformers holds as a parameter has an adapter of that. Beside experts all layers but attention's
// are named so: of "gate_proj" among target_modules PEFT makes experts, whatever stands before it.
std::vector<std::string> target_parameters(const ModelConfig& model) {
  std::vector<std::string> targets;
  const Family& family = family_for(model);
  for (const ParamPlace& place : ParamLayout(model, 1).places) {
    if (place.info.adapter != AdapterMatrix::kA || !is_by_parameter(model, place.info)) continue;
    for (std::string& name : peft_parameters(family, model, place.info))
      if (std::ranges::find(targets, name) == targets.end()) targets.push_back(std::move(name));
  }
  return targets;
}

bool has_transposed_layers(const ModelConfig& model) {
  const Family& family = family_for(model);
  for (const TensorNames& names : family.tensors)
    if (names.transposed && !names.stacked) return true;
  return false;
}

nlohmann::ordered_json peft_config(const ModelConfig& model, const AdapterBase& base) {
  nlohmann::ordered_json alpha = model.lora.alpha;  // PEFT expects a whole number, and computes with any
  if (model.lora.alpha == std::floor(model.lora.alpha)) alpha = static_cast<int64_t>(model.lora.alpha);
  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", "CAUSAL_LM"},
                                   {"base_model_name_or_path", base.name},
                                   {"r", model.lora.rank},
                                   {"lora_alpha", alpha},
                                   {"lora_dropout", 0.0},
                                   {"target_modules", target_modules(model)},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", has_transposed_layers(model)},
                                   {"inference_mode", true}};
  if (std::vector<std::string> parameters = target_parameters(model); !parameters.empty())
    config["target_parameters"] = std::move(parameters);
  if (!base.stored_as.empty()) config[kBaseStoredAs] = base.stored_as;
  return config;
}

}  // namespace

bool splits_qkv(const ModelConfig& model) {
  for (const TensorNames& names : family_for(model).tensors)
    if (names.ours == "attention.qkv.") return !names.theirs[1].empty();
  return false;
}

bool has_layers_of_adapters(std::string_view model_type, const ModelConfig& model) {
  const Family *const theirs = find_family(model_type), *const ours = &family_for(model);
  const auto are_same = [](const TensorNames& a, const TensorNames& b) {
    return a.ours == b.ours && a.gated == b.gated && a.theirs == b.theirs;
  };
  return theirs && theirs->lead == ours->lead && std::string_view(theirs->block) == ours->block &&
         std::ranges::equal(theirs->tensors, ours->tensors, are_same);
}

FileChecksums write_peft_adapter(const std::filesystem::path& folder, const ModelConfig& model,
                                 const AdapterBase& base,
                                 const std::function<void(const AdapterSink&)>& each) {
  FileChecksums files;
  files[kAdapterConfigFile] = write_json(folder / kAdapterConfigFile, peft_config(model, base));
  WeightsWriter file(
      folder / kAdapterFile, model, {""}, DType::kF32,
      [](const std::string&, const ParamPlace& place) { return place.info.adapter != AdapterMatrix::kNone; });
  each([&](const ParamInfo& info, const Tensor& values) { file.write(info, values); });
  files[kAdapterFile] = file.commit();
  return files;
}

}  // namespace tessera

#include "train/export/checkpoint_adapter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/arena.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "model/formats/peft.h"
#include "model/formats/weights.h"
#include "model/lora.h"
#include "train/run/checkpoint_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterStem = "adapter_model";

fs::path config_of(const fs::path& checkpoint) { return checkpoint / kAdapterFolder / kAdapterConfigFile; }

TensorFiles files_of(const fs::path& checkpoint) {
  check(fs::exists(config_of(checkpoint)),
        "--base adds an adapter to the weights of a folder, and {} has none: only the checkpoints of a run "
        "with "
        "train.lora do",
        checkpoint.string());
  return TensorFiles(checkpoint / kAdapterFolder, kAdapterStem);
}

// PEFT's file says rank and alpha; which layers have adapters, the names of the tensors say.
ModelConfig with_adapter(ModelConfig model, const fs::path& checkpoint, const TensorFiles& files) {
  const fs::path path = config_of(checkpoint);
  const nlohmann::json config = read_json(path);
  model.lora.rank = whole_number(config, "r", path.string(), 1, 1'000'000);
  check(config["lora_alpha"].is_number(), "{}: \"lora_alpha\" must be a number", path.string());
  model.lora.alpha = config["lora_alpha"].get<double>();
  model.lora.split_qkv = splits_qkv(model);
  for (unsigned which = 1; which < 1u << words_of(Adapted{}).size(); ++which) {
    model.lora.parts = {};
    for (const auto& [word, part] : words_of(Adapted{}))
      if (which >> static_cast<int>(part) & 1) model.lora.parts.add(part);
    const std::vector<std::string> names =
        tensor_names(model, {""}, [](const std::string&, const ParamPlace& place) {
          return place.info.adapter != AdapterMatrix::kNone;
        });
    if (names.size() == files.tensors().size() &&
        std::ranges::all_of(names, [&](const std::string& name) { return files.contains(name); }))
      return model;
  }
  fail("{} has adapters of other layers than those of the model: the checkpoint is damaged",
       (checkpoint / kAdapterFolder / kAdapterFile).string());
}

}  // namespace

CheckpointAdapter::CheckpointAdapter(const fs::path& checkpoint, const ModelConfig& model)
    : files_(files_of(checkpoint)), model_(with_adapter(model, checkpoint, files_)), layout_(model_, 1) {}

void CheckpointAdapter::add_to(const ParamInfo& weight, const Tensor& values) const {
  const ParamPlace& place =
      *std::ranges::find(layout_.places, weight.name, [](const ParamPlace& one) { return one.info.name; });
  const auto adapter = layout_.adapter_of(place);
  if (!adapter) return;
  Arena staging = Arena::host();
  const auto read = [&](const ParamPlace& matrix) {
    const Tensor own = staging.alloc(MemoryTag::kData, matrix.info.name, DType::kF32, matrix.info.shape);
    read_param(files_, model_, matrix, "", [&](const ParamPlace&, const Tensor& found) {
      std::copy_n(found.as<float>(), found.numel(), own.as<float>());
    });
    return own;
  };
  const Tensor a = read(*adapter->a), b = read(*adapter->b);
  add_adapter(values, a, b, adapter->a->info.layers, model_.lora.scale());
}

AdapterBase adapter_base_of(const fs::path& checkpoint) {
  const fs::path path = config_of(checkpoint);
  if (!fs::exists(path)) return {};
  const nlohmann::json config = read_json(path);
  return {
      .name = text_value(config, "base_model_name_or_path", path.string()),
      .stored_as = config.contains(kBaseStoredAs) ? text_value(config, kBaseStoredAs, path.string()) : ""};
}

}  // namespace tessera

// Adapters in the format of PEFT (https://github.com/huggingface/peft): a folder with adapter_config.json and
// adapter_model.safetensors. PeftModel.from_pretrained() puts it on top of the model that it was trained on.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/file_checksums.h"
#include "model/params.h"

namespace tessera {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";

// Whether the files of this model have q, k and v, and gate and up, as separate layers:
// LoraConfig::split_qkv. Error: no family can hold the model.
bool splits_qkv(const ModelConfig& model);

// Whether models of this model_type name their layers as the adapters of `model` do
bool has_layers_of_adapters(std::string_view model_type, const ModelConfig& model);

// Receives the values of one matrix of an adapter, fp32 on the host.
using AdapterSink = std::function<void(const ParamInfo& info, const Tensor& values)>;

// A field that we add to adapter_config.json, and that PEFT ignores: what the weights below the adapter were
// rounded to while it was trained, "nf4", "mxfp4" or "fp8". Without the field they were not rounded
inline constexpr const char* kBaseStoredAs = "base_stored_as";

// The model that an adapter is put on top of
struct AdapterBase {
  std::string name;            // a folder, or a name on the hub
  std::string stored_as = "";  // as kBaseStoredAs; "": not rounded
};

// Writes both files, in fp32. `each` calls its argument with every matrix of every adapter, in the order of
// the buckets of ParamLayout. Returns the checksums of the files. Error: a value is not finite.
FileChecksums write_peft_adapter(const std::filesystem::path& folder, const ModelConfig& model,
                                 const AdapterBase& base,
                                 const std::function<void(const AdapterSink&)>& each);

}  // namespace tessera

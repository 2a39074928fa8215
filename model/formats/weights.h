// The weights of a folder: model.safetensors with Hugging Face's GPT-2 names and layouts, beside config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/formats/positions.h"
#include "model/formats/safetensors.h"
#include "model/params.h"

namespace tessera {

// Writes parameters as Hugging Face lays them out. `prefixes` lead the names: every parameter comes once
// for each of them, in the order of the prefixes, and within one in the order of the buckets.
class WeightsWriter {
 public:
  WeightsWriter(const std::filesystem::path& path, const ParamLayout& layout,
                const std::vector<std::string>& prefixes);
  void write(const ParamInfo& info,
             const Tensor& values);  // fp32 on the host, shaped info.shape. Error: not finite
  FileChecksum commit();

 private:
  SafetensorsWriter file_;
};

void read_param(const SafetensorsReader& file, const ParamPlace& place, const std::string& name,
                const ParamSink& sink);

// Whether `folder` holds the weights of `model`: config.json, and in model.safetensors (or the files that an
// index names) exactly the tensors of such a GPT-2, with or without the leading "transformer.". Only headers
// are read. It may have fewer positions where they are to be extended. Returns what a run should say: see
// FoundModel. Error: anything missing, malformed, left over, or of another model.
std::vector<std::string> check_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                       PositionExtension extension);

// Takes the weights of a folder: one of our checkpoints, or what transformers' save_pretrained() wrote for a
// GPT-2. Error: as check_weights.
void load_weights(const std::filesystem::path& folder, const ModelConfig& model, const ParamSink& sink,
                  PositionExtension extension = PositionExtension::kNone);

}  // namespace tessera

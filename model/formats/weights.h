// The weights of a folder: model.safetensors with Hugging Face's GPT-2 names and layouts, beside config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/formats/positions.h"
#include "model/formats/safetensors.h"
#include "model/params.h"

namespace tessera {

// Writes parameters with Hugging Face's names and layouts. Every parameter is written once for each prefix
// of its name: in the order of the prefixes, and for one prefix in the order of the buckets.
class WeightsWriter {
 public:
  WeightsWriter(const std::filesystem::path& path, const ParamLayout& layout,
                const std::vector<std::string>& prefixes);
  // `values`: fp32 on the host, of info.shape. Error: a value that is not finite
  void write(const ParamInfo& info, const Tensor& values);
  FileChecksum commit();

 private:
  SafetensorsWriter file_;
};

void read_param(const SafetensorsReader& file, const ParamPlace& place, const std::string& name,
                const ParamSink& sink);

// Whether `folder` holds the weights of `model`: config.json, and in model.safetensors (or the files that an
// index names) exactly the tensors of such a GPT-2, with or without the leading "transformer.". Only headers
// are read. It may have fewer positions if `extension` extends them. Returns notices: see FoundModel. Error:
// anything missing, malformed, superfluous, or of another model.
std::vector<std::string> check_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                       PositionExtension extension);

// Loads the weights of a folder: a checkpoint, or a GPT-2 from transformers' save_pretrained(). Error: as
// check_weights.
void load_weights(const std::filesystem::path& folder, const ModelConfig& model, const ParamSink& sink,
                  PositionExtension extension = PositionExtension::kNone);

}  // namespace tessera

// The weights of a folder: model.safetensors with the names and layouts of its family, beside config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/formats/positions.h"
#include "model/formats/safetensors.h"
#include "model/params.h"

namespace tessera {

struct Family;

// Writes parameters with the names and layouts of the model's family. Every parameter is written once for
// each prefix of its name: in the order of the prefixes, and for one prefix in the order of the buckets.
class WeightsWriter {
 public:
  // Values are rounded to `dtype`, to nearest even. With `has`, a prefix has those parameters alone.
  using Has = std::function<bool(const std::string& prefix, const ParamPlace& place)>;
  WeightsWriter(const std::filesystem::path& path, const ModelConfig& model,
                const std::vector<std::string>& prefixes, DType dtype = DType::kF32, const Has& has = {});
  // `values`: fp32 on the host, of info.shape. Error: a value that is not finite
  void write(const ParamInfo& info, const Tensor& values);
  FileChecksum commit();

 private:
  const Family& family_;
  ModelConfig model_;
  SafetensorsWriter file_;
  Arena staging_ = Arena::host();
};

// Reads a parameter from a file that WeightsWriter wrote with this prefix.
void read_param(const SafetensorsReader& file, const ModelConfig& model, const ParamPlace& place,
                const std::string& prefix, const ParamSink& sink);

// Whether `folder` holds the weights of `model`: config.json, and in model.safetensors (or the files that an
// index names) exactly the tensors of such a model, with or without the leading "transformer." or "model.".
// Only headers are read. It may have fewer positions if `extension` extends them. Returns notices: see
// FoundModel. Error: anything missing, malformed, superfluous, or of another model.
std::vector<std::string> check_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                       PositionExtension extension);

// Loads the weights of a folder: a checkpoint, or a model from transformers' save_pretrained(). Adapters are
// left as they are. Error: as check_weights.
void load_weights(const std::filesystem::path& folder, const ModelConfig& model, const ParamSink& sink,
                  PositionExtension extension = PositionExtension::kNone);

}  // namespace tessera

// Folders of weights as transformers saves them, made by hand.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/formats/gpt2.h"
#include "model/formats/safetensors.h"
#include "model/params.h"

namespace tessera::testing {

struct FileTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

// The tensors of a GPT2LMHeadModel, with a value of its own in every place.
inline std::vector<FileTensor> gpt2_tensors(const ModelConfig& model) {
  std::vector<FileTensor> tensors;
  float next = 0;
  for (const ParamPlace& place : ParamLayout(model, 1).places) {
    const Shape& ours = place.info.shape;
    const Shape shape = gpt2_transposes(place.info) ? Shape{ours[1], ours[0]}
                        : ours.rank() == 2          ? Shape{ours[0] - place.info.padding, ours[1]}
                                                    : ours;
    FileTensor tensor{gpt2_name(place.info), shape, {}};
    for (int64_t i = 0; i < shape.numel(); ++i) tensor.values.push_back(next += 0x1p-12f);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

inline FileTensor& tensor_of(std::vector<FileTensor>& tensors, const std::string& name) {
  for (FileTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

inline void write_tensors(const std::filesystem::path& path, const std::vector<FileTensor>& tensors) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const FileTensor& tensor : tensors) entries.push_back({tensor.name, tensor.shape});
  SafetensorsWriter file(path, std::move(entries));
  for (const FileTensor& tensor : tensors) file.write(tensor.values);
  file.commit();
}

// The fields that say of what size it is; GPT2Config's defaults serve for the rest.
inline nlohmann::json gpt2_fields(const ModelConfig& model) {
  return {{"model_type", "gpt2"},    {"vocab_size", model.vocab_size}, {"n_positions", model.context},
          {"n_layer", model.layers}, {"n_head", model.heads},          {"n_embd", model.channels}};
}

inline void write_fields(const std::filesystem::path& folder, const nlohmann::json& fields) {
  std::ofstream(folder / "config.json") << fields.dump(2);
}

inline void write_gpt2(const std::filesystem::path& folder, const ModelConfig& model,
                       const nlohmann::json& more_fields = nlohmann::json::object()) {
  std::filesystem::create_directories(folder);
  nlohmann::json fields = gpt2_fields(model);
  fields.update(more_fields);
  write_fields(folder, fields);
  write_tensors(folder / "model.safetensors", gpt2_tensors(model));
}

}  // namespace tessera::testing

// Folders of weights as transformers saves them, made by hand.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/formats/pieces.h"
#include "model/formats/safetensors.h"
#include "model/params.h"

namespace tessera::testing {

struct FolderTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

// The tensors of a model of transformers, with a value of its own in every place.
inline std::vector<FolderTensor> tensors_of(const ModelConfig& model) {
  std::vector<FolderTensor> tensors;
  float next = 0;
  for (const ParamPlace& place : ParamLayout(model, 1).places)
    for (const TensorPiece& piece : pieces_of(family_for(model), model, place.info)) {
      FolderTensor tensor{piece.name, piece.shape, {}};
      for (int64_t i = 0; i < piece.elements(); ++i) tensor.values.push_back(next += 0x1p-12f);
      tensors.push_back(std::move(tensor));
    }
  return tensors;
}

inline FolderTensor& tensor_of(std::vector<FolderTensor>& tensors, const std::string& name) {
  for (FolderTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

inline void write_tensors(const std::filesystem::path& path, const std::vector<FolderTensor>& tensors,
                          DType dtype = DType::kF32) {
  std::vector<FileTensor> entries;
  for (const FolderTensor& tensor : tensors)
    entries.push_back({tensor.name, tensor.shape, number_format(dtype)});
  SafetensorsWriter file(path, std::move(entries));
  for (const FolderTensor& tensor : tensors) file.write(tensor.values);
  file.commit();
}

// The fields that say of what size it is; GPT2Config's defaults serve for the rest.
inline nlohmann::json gpt2_fields(const ModelConfig& model) {
  return {{"model_type", "gpt2"},
          {"vocab_size", model.vocab_size},
          {"n_positions", model.context},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_embd", model.channels},
          {"attn_pdrop", model.dropout.attention},
          {"embd_pdrop", model.dropout.embedding},
          {"resid_pdrop", model.dropout.residual}};
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
  write_tensors(folder / "model.safetensors", tensors_of(model));
}

}  // namespace tessera::testing

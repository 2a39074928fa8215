// The tensors of a folder, which are in one file or in several.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/formats/safetensors.h"

namespace tessera {

// Opens STEM.safetensors, or else the files that STEM.safetensors.index.json names. Error: neither exists; a
// file is missing or damaged; the index does not list exactly the tensors of its files.
class TensorFiles {
 public:
  explicit TensorFiles(const std::filesystem::path& folder, const std::string& stem = "model");

  const std::map<std::string, const SafetensorsReader*>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  const SafetensorsReader& file_of(const std::string& name) const;  // Error: no file has it

 private:
  void read_index(const std::filesystem::path& index);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, const SafetensorsReader*> tensors_;
};

}  // namespace tessera

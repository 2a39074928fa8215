// Tensors in one safetensors file, or in several with an index, as transformers reads them.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/file_checksums.h"
#include "model/formats/safetensors.h"

namespace tessera {

// Writes `tensors`, in their order, to model.safetensors in `folder`. If they have more than `most_bytes`, it
// writes model-00001-of-00003.safetensors and so on, each with at most that many bytes of tensors (a larger
// tensor has a file of its own), and model.safetensors.index.json. Error: as SafetensorsWriter
class ShardedSafetensorsWriter {
 public:
  ShardedSafetensorsWriter(std::filesystem::path folder, const std::vector<FileTensor>& tensors,
                           int64_t most_bytes);
  void write(std::span<const float> values);  // the next tensor
  FileChecksums commit();                     // of all files. Error: tensors are missing

 private:
  void open_next();

  std::filesystem::path folder_;
  std::vector<std::vector<FileTensor>> files_;
  size_t file_ = 0, tensor_ = 0;  // the next tensor's
  std::unique_ptr<SafetensorsWriter> writer_;
  FileChecksums written_;
};

}  // namespace tessera

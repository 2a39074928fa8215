// Matrices of experts in MXFP4 (OCP Microscaling Formats 1.0) as gpt-oss and transformers save them. A
// parameter
// X [E, in, out] is stored as two tensors:
//   X_blocks  u8 [E, out, in / 32, 16]: a row of `in` numbers in blocks of 32, two in a byte, the low half
//             first
//   X_scales  u8 [E, out, in / 32]: the numbers of a block are multiplied by 2^(scale - 127)
// A number is 4 bits: its sign, then one of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "model/formats/tensor_files.h"

namespace tessera {

// Whether config.json's "quantization_config" says that experts are stored in this way
bool is_mxfp4(const nlohmann::json& quantization_config);

bool is_in_mxfp4(const std::filesystem::path& folder);  // the same for a model's folder

class Mxfp4Tensor {
 public:
  // The names of the tensors that hold the numbers, and the scales, of the parameter with this name in the
  // files
  static std::string blocks_of(const std::string& name) { return name + "_blocks"; }
  static std::string scales_of(const std::string& name) { return name + "_scales"; }
  static bool is_one(const TensorFiles& files, const std::string& name) {
    return !files.contains(name) && files.contains(blocks_of(name));
  }
  // Error: no such tensors, another kind of numbers, or another shape than [E, in, out]
  Mxfp4Tensor(const TensorFiles& files, const std::string& name, const Shape& shape);

  void read(std::span<float> out) const;  // [E, in, out]. Error: a scale that is not finite

 private:
  std::string name_;
  Shape shape_;
  std::span<const std::byte> codes_, scales_;
};

}  // namespace tessera

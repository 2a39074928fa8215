// Matrices in NF4 as bitsandbytes (https://github.com/bitsandbytes-foundation/bitsandbytes) and transformers
// save them. The tensor with the weight's name has the codes of all elements, two in a byte. Beside it are
// tensors whose names begin with the weight's. For a matrix of n elements:
//   .quant_state.bitsandbytes__nf4   JSON: its shape, elements of a block, and of a block of scales
//   .absmax                          a scale for each block: fp32, or with double quantisation a byte
//   .quant_map                       the 16 values
//   .nested_absmax .nested_quant_map double quantisation: scale = map[byte] absmax[block of scales] + offset
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/formats/tensor_files.h"

namespace tessera {

// Whether config.json's "quantization_config" says that matrices are stored in this way, and says nothing
// else
bool is_bitsandbytes_nf4(const nlohmann::json& quantization_config);

bool is_in_nf4(const std::filesystem::path& folder);  // the same for a model's folder

class Nf4Tensor {
 public:
  static bool is_one(const TensorFiles& files, const std::string& name);
  // Reads the description of the matrix, not its numbers. Error: something is missing, or has another type or
  // another shape
  Nf4Tensor(const TensorFiles& files, const std::string& name, const Shape& shape);

  const std::vector<std::string>& names() const { return names_; }  // of all its tensors in the files
  void read(std::span<float> out) const;                            // Error: a scale that is not finite

  // How its numbers, or with `nested` also its scales, differ from those of kernels/base/nf4.h and
  // small_scales.h: "has blocks of ...". Empty: not at all
  struct Form {
    int64_t columns;
    bool nested;
  };
  std::string difference(const Form& form) const;
  std::span<const std::byte> codes() const { return codes_; }
  std::vector<float> scales() const;  // Error: one is not finite
  // Of double quantisation: the scales' codes, and what their values are multiplied by, then what is added
  std::span<const std::byte> scale_codes() const { return absmax_; }
  const std::vector<float>& largest() const { return largest_; }
  float offset() const { return offset_; }

 private:
  std::span<const std::byte> bytes_of(const std::string& suffix, const char* dtype, int64_t elements);
  void find_scales(const nlohmann::json& state, int64_t count);

  const TensorFiles& files_;
  std::string name_;
  int64_t block_ = 0;
  std::span<const std::byte> codes_, absmax_;
  int64_t nested_block_ = 0;  // 0: without double quantisation
  float offset_ = 0;
  std::vector<float> map_, largest_;  // with double quantisation
  std::vector<std::string> names_;
};

}  // namespace tessera

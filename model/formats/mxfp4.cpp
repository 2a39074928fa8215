#include "model/formats/mxfp4.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/mxfp4.h"
#include "model/formats/pieces.h"

namespace tessera {
namespace {

std::span<const std::byte> u8_tensor(const TensorFiles& files, const std::string& name, const Shape& shape) {
  const SafetensorsReader::Entry& entry = files.file_of(name).entries().at(name);
  std::vector<int64_t> wanted;
  for (int i = 0; i < shape.rank(); ++i) wanted.push_back(shape[i]);
  check(entry.dtype == "U8" && entry.shape == wanted, "tensor {} must be U8 [{}], found {} [{}]", name,
        fmt::join(wanted, ", "), entry.dtype, fmt::join(entry.shape, ", "));
  return entry.bytes;
}

}  // namespace

bool is_mxfp4(const nlohmann::json& config) {
  return config.is_object() && config.contains("quant_method") && config["quant_method"] == "mxfp4";
}

bool is_in_mxfp4(const std::filesystem::path& folder) {
  const nlohmann::json config = read_json(folder / "config.json");
  return config.is_object() && config.contains("quantization_config") &&
         is_mxfp4(config["quantization_config"]);
}

Mxfp4Tensor::Mxfp4Tensor(const TensorFiles& files, const std::string& name, const Shape& shape)
    : name_(name), shape_(shape) {
  check(shape.rank() == 3 && shape[1] % kMxfp4Block == 0,
        "tensor {} is in MXFP4, whose rows are whole blocks of {} numbers; the model has {}", blocks_of(name),
        kMxfp4Block, shape.to_string());
  const int64_t blocks = shape[1] / kMxfp4Block;
  codes_ = u8_tensor(files, blocks_of(name), {shape[0], shape[2], blocks, kMxfp4Block / 2});
  scales_ = u8_tensor(files, scales_of(name), {shape[0], shape[2], blocks});
}

void Mxfp4Tensor::read(std::span<float> out) const {
  const int64_t inputs = shape_[1], outputs = shape_[2], each = inputs * outputs, blocks = each / kMxfp4Block;
  std::vector<float> rows(static_cast<size_t>(each));  // of an expert: [out, in]
  for (int64_t expert = 0; expert < shape_[0]; ++expert) {
    const std::byte* codes = codes_.data() + expert * each / 2;
    const std::byte* scales = scales_.data() + expert * blocks;
    bool finite = true;
#pragma omp parallel for reduction(&& : finite)
    for (int64_t block = 0; block < blocks; ++block) {
      const auto exponent = static_cast<uint32_t>(scales[block]);
      finite = finite && exponent != kNoMxfp4Scale;
      const float scale = float_of_bits(mxfp4_scale_bits(exponent));
      for (int64_t i = 0; i < kMxfp4Block; i += 2) {
        const auto both = static_cast<unsigned>(codes[(block * kMxfp4Block + i) / 2]);
        float* to = rows.data() + block * kMxfp4Block + i;
        to[0] = mxfp4_value(both & 15) * scale, to[1] = mxfp4_value(both >> 4) * scale;
      }
    }
    check(finite, "tensor {} of expert {} has a scale that is not finite", scales_of(name_), expert);
    transpose(rows, outputs, inputs, out.data() + expert * each);
  }
}

}  // namespace tessera

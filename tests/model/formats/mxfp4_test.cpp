// Experts that are stored in MXFP4 against those that transformers widens; the folder is made by
// tests/fixtures/make_mxfp4_folder.py
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/formats/family.h"
#include "model/formats/folder.h"
#include "model/formats/pieces.h"
#include "model/formats/tensor_files.h"
#include "model/formats/weights.h"
#include "tests/data/support.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(TESSERA_SOURCE_DIR) / "tests/fixtures/mxfp4";

struct Mxfp4 : InTempFolder {
  fs::path copy = folder_ / "copy";
  ModelConfig model = read_model_config(kFolder).model;
  void SetUp() override { fs::copy(kFolder, copy); }
  // The bytes of a tensor of the copy, which `change` changes in the file
  void change(const std::string& tensor, size_t at, char to) const {
    const SafetensorsReader reader(copy / "model.safetensors");
    const std::string bytes = read_file(copy / "model.safetensors");
    const std::span<const std::byte> own = reader.entries().at(tensor).bytes;
    const size_t first = bytes.find(std::string(reinterpret_cast<const char*>(own.data()), own.size()));
    ASSERT_NE(first, bytes.npos);
    std::string changed = bytes;
    changed[first + at] = to;
    std::ofstream(copy / "model.safetensors", std::ios::binary) << changed;
  }
};

TEST_F(Mxfp4, ExpertsHaveTheBitsThatTransformersMakesOfThem) {
  const TensorFiles widened(kFolder, "dequantised");
  int compared = 0;
  load_weights(kFolder, model, [&](const ParamPlace& place, const Tensor& values) {
    for (const TensorPiece& piece : pieces_of(*find_family("gpt_oss"), model, place.info)) {
      if (!widened.contains(piece.name)) continue;
      std::vector<float> ours(static_cast<size_t>(piece.elements())), theirs(ours.size());
      to_file(piece, {values.as<float>(), static_cast<size_t>(values.numel())}, ours);
      widened.file_of(piece.name).read(piece.name, piece.shape, theirs, Values::kFinite);
      EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)), 0) << piece.name;
      ++compared;
    }
  });
  EXPECT_EQ(compared, 2);
  const std::vector<std::string> notices = check_weights(kFolder, model);
  ASSERT_EQ(notices.size(), 2u);  // the first: YaRN's factor
  EXPECT_NE(notices[1].find("2 tensors of experts"), std::string::npos) << notices[1];
}

TEST_F(Mxfp4, WhatDoesNotFitIsRefused) {
  const std::string name = "model.layers.0.mlp.experts.down_proj";
  change(name + "_scales", 70, '\xff');
  expect_error([&] { load_weights(copy, model, [](const ParamPlace&, const Tensor&) {}); },
               {name + "_scales", "expert 1", "not finite"});
  ModelConfig wider = model;
  nlohmann::json fields = nlohmann::json::parse(read_file(kFolder / "config.json"));
  fields["intermediate_size"] = 64;
  std::ofstream(copy / "config.json") << fields;
  wider.experts.width = 64;
  expect_error([&] { check_weights(copy, wider); }, {"U8 [3, 128, 2, 16]", "found U8 [3, 64, 2, 16]"});
  fields["quantization_config"] = {{"quant_method", "fp8"}};
  std::ofstream(copy / "config.json") << fields;
  expect_error([&] { read_model_config(copy); }, {"quantization_config", "MXFP4"});
}

}  // namespace
}  // namespace tessera::testing

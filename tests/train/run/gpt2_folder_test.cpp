// The tensors of a folder: with either kind of names, in one file or several, and exactly those of the model.
#include <nlohmann/json.hpp>

#include "model/formats/folder.h"
#include "model/formats/weights.h"
#include "tests/data/support.h"
#include "tests/model/formats/folder_support.h"
#include "tests/model_variants.h"
#include "tests/support.h"
#include "train/run/checkpoint.h"
#include "train/session/device.h"
#include "train/session/train_state.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr ModelConfig kTinyFolder{.vocab_size = 61, .context = 16, .layers = 2, .heads = 2, .channels = 24};
constexpr const char* kTable = "transformer.wte.weight";

struct GPT2Folder : InTempFolder {
  fs::path file = folder_ / "model.safetensors";
  std::vector<FolderTensor> tensors = tensors_of(kTinyFolder);

  void SetUp() override { write_gpt2(folder_, kTinyFolder); }
  void refused(std::initializer_list<std::string_view> words) const {
    expect_error([&] { check_weights(folder_, kTinyFolder); }, words);
  }
  // Whether what is loaded is what `tensors` has.
  void expect_loaded(const ModelConfig& model = kTinyFolder) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    TrainState state(*be, arena, {.model = model, .micro_batch = 1, .micro_steps = 1, .sequence_length = 8});
    ASSERT_NO_THROW(load_weights(folder_, state));
    const Params params = state.store().weights();
    int64_t compared = 0;
    for_each_param(params, model, [&](const ParamInfo& info, const Tensor& tensor) {
      const std::span<float> found = floats(tensor);
      for (const TensorPiece& piece : pieces_of(family_for(model), model, info))
        for (int64_t r = 0; r < piece.rows; ++r)
          for (int64_t c = 0; c < piece.columns; ++c, ++compared) {
            const int64_t at = piece.transposed ? c * piece.rows + r : r * piece.columns + c;
            ASSERT_EQ(found[static_cast<size_t>((piece.first + r) * piece.columns + c)],
                      tensor_of(tensors, piece.name).values[static_cast<size_t>(at)])
                << info.name;
          }
    });
    EXPECT_EQ(compared, model.parameters());
  }
};

std::vector<FolderTensor> bare(std::vector<FolderTensor> tensors) {  // as GPT2Model saves them
  for (FolderTensor& tensor : tensors)
    if (tensor.name.starts_with("transformer.")) tensor.name = tensor.name.substr(12);
  return tensors;
}

TEST_F(GPT2Folder, NamesMayLackTheirLead) {
  expect_loaded();
  write_tensors(file, bare(tensors));
  expect_loaded();
}

TEST_F(GPT2Folder, EveryVariantIsRead) {
  for (const Variant& variant : variants_of(kTinyFolder)) {
    write_fields(folder_, json::parse(hugging_face_config(variant.model, DType::kF32).dump()));
    tensors = tensors_of(variant.model);
    for (const auto& written : {tensors, bare(tensors)}) {
      write_tensors(file, written);
      EXPECT_NO_THROW(check_weights(folder_, variant.model)) << variant.name;
      expect_loaded(variant.model);
    }
  }
}

TEST_F(GPT2Folder, MasksAndACopyOfTheTiedTableAreLeftOut) {
  for (const char* name : {"transformer.h.0.attn.bias", "h.1.attn.masked_bias"})
    tensors.push_back({name, {1, 1, 2, 2}, {1, 0, 1, 1}});
  tensors.push_back({"lm_head.weight", {61, 24}, tensor_of(tensors, kTable).values});
  write_tensors(file, tensors);
  expect_loaded();
  write_tensors(file, bare(tensors));
  expect_loaded();

  tensors.back().values[7] += 1;
  write_tensors(file, tensors);
  refused({"lm_head.weight and transformer.wte.weight differ", "\"tie_word_embeddings\": false"});
  write_gpt2(folder_, kTinyFolder, {{"tie_word_embeddings", false}});
  refused({"tie_word_embeddings is false", "model.tied=true"});
}

TEST_F(GPT2Folder, TensorsLeftOverAreRefusedByName) {
  for (const char* name : {"score.weight", "transformer.h.2.ln_1.weight", "lm_head.bias", "wte.weight",
                           "transformer.h.0.attn.rotary.inv_freq", "transformer.h.0.crossattention.bias"}) {
    std::vector<FolderTensor> more = tensors;
    more.push_back({name, {1}, {0}});
    write_tensors(file, more);
    refused({"does not have: " + std::string(name)});
  }
  for (int i = 0; i < 8; ++i) tensors.push_back({"z." + std::to_string(i), {1}, {0}});
  write_tensors(file, tensors);
  refused({"z.0, z.1, z.2, z.3, z.4 and 3 more"});
}

TEST_F(GPT2Folder, MissingTensorsShapesAndDtypesAreRefused) {
  std::vector<FolderTensor> fewer = tensors;
  fewer.erase(fewer.begin() + 7);
  write_tensors(file, fewer);
  refused({"has no tensor " + tensors[7].name});
  write_gpt2(folder_, kTinyFolder, {{"tie_word_embeddings", false}});
  ModelConfig untied = kTinyFolder;
  untied.tied = false;
  expect_error([&] { check_weights(folder_, untied); }, {"has no tensor lm_head.weight"});

  write_gpt2(folder_, kTinyFolder);
  FolderTensor& fc = tensor_of(tensors, "transformer.h.1.mlp.c_fc.weight");
  fc.shape = {96, 24};
  write_tensors(file, tensors);
  refused({"transformer.h.1.mlp.c_fc.weight has shape [96, 24]", "[24, 96]"});

  std::string bytes = read_file(file);
  fc.shape = {24, 96};
  write_tensors(file, tensors);
  bytes = read_file(file);
  bytes.replace(bytes.find("\"dtype\":\"F32\""), 13, "\"dtype\":\"I32\"");
  write("model.safetensors", bytes);
  refused({"dtype I32", "F32, BF16 and F16"});
  fs::resize_file(file, 100);
  refused({"model.safetensors", "truncated"});
}

TEST_F(GPT2Folder, SeveralFilesAreReadThroughTheirIndex) {
  fs::remove(file);
  const size_t half = tensors.size() / 2;
  write_tensors(folder_ / "a.safetensors", {tensors.begin(), tensors.begin() + half});
  write_tensors(folder_ / "b.safetensors", {tensors.begin() + half, tensors.end()});
  json map;
  for (size_t i = 0; i < tensors.size(); ++i)
    map[tensors[i].name] = i < half ? "a.safetensors" : "b.safetensors";
  const auto index = [&](const json& weight_map) {
    write("model.safetensors.index.json",
          json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
  };
  index(map);
  expect_loaded();

  const auto changed = [&](const std::string& tensor, const json& in,
                           std::initializer_list<std::string_view> words) {
    json other = map;
    other[tensor] = in;
    index(other);
    refused(words);
  };
  changed(kTable, "b.safetensors", {"index.json: tensor transformer.wte.weight", "in b.safetensors"});
  changed(kTable, "c.safetensors", {"c.safetensors"});
  for (const char* path : {"../a.safetensors", "/etc/a.safetensors", "x/a.safetensors", "config.json", ""})
    changed(kTable, path, {kTable, ".safetensors file", "found"});
  changed(kTable, 7, {kTable, ".safetensors file", "found 7"});
  changed("more", "a.safetensors", {"tensor more should be in a.safetensors, which does not have it"});
  json fewer = map;
  fewer.erase(kTable);
  index(fewer);
  refused({"a.safetensors has a tensor transformer.wte.weight that", "index.json does not list"});
  index(7);
  refused({"has no object \"weight_map\""});
  write("model.safetensors.index.json", std::string(200'000, '['));
  refused({"index.json:1:65", "64 deep"});
}

TEST_F(GPT2Folder, APointerOfGitLfsIsNamed) {
  for (const char* name :
       {"pytorch_model.bin", "model.safetensors.index.json", "model.safetensors", "config.json"}) {
    fs::remove(file);
    write(name,
          "version https://git-lfs.github.com/spec/v1\n"
          "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
          "size 988097824\n");
    refused({name, "Git LFS pointer", "988097824 bytes", "lfs pull"});
  }
}

TEST_F(GPT2Folder, OtherFormatsAreToldHowToConvert) {
  fs::remove(file);
  refused({"no model.safetensors", "model.safetensors.index.json"});
  write("pytorch_model.bin", "x");
  refused({"pytorch_model.bin", "save_pretrained(", "safe_serialization=True", folder_.native()});
  fs::remove(folder_ / "config.json");
  refused({"has no config.json"});
}

}  // namespace
}  // namespace tessera::testing

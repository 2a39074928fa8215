// The tensors of every family: the table covers each parameter once, and weights come back as they were, in
// every dtype, in one file or several.
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/bf16.h"
#include "model/formats/folder.h"
#include "model/formats/peft.h"
#include "model/formats/pieces.h"
#include "model/formats/weights.h"
#include "tests/data/support.h"
#include "tests/model/formats/folder_support.h"
#include "tests/model_families.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// As F16; the values are small whole numbers.
std::string half_file(const std::vector<FolderTensor>& tensors) {
  std::string data;
  json header;
  for (const FolderTensor& tensor : tensors) {
    json shape = json::array();
    for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
    const size_t begin = data.size();
    for (const float value : tensor.values) {
      const int exponent = std::ilogb(value);
      const auto mantissa = static_cast<uint16_t>(std::ldexp(value, 10 - exponent) - 1024);
      data += little_endian(static_cast<uint64_t>((exponent + 15) << 10 | mantissa), 2);
    }
    header[tensor.name] = {{"dtype", "F16"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  return little_endian(text.size(), 8) + text + data;
}

struct FamilyWeights : InTempFolder {
  fs::path file = folder_ / "model.safetensors";

  void describe(const ModelConfig& model) const {
    write_fields(folder_, json::parse(hugging_face_config(model, DType::kF32).dump()));
  }
  using Loaded = std::map<std::string, std::vector<float>>;  // by ParamInfo::name, with padding
  Loaded load(const ModelConfig& model) const {
    Loaded loaded;
    load_weights(folder_, model, [&](const ParamPlace& place, const Tensor& values) {
      EXPECT_EQ(values.shape, place.info.shape);
      const std::span<const float> span(values.as<float>(), static_cast<size_t>(values.numel()));
      EXPECT_TRUE(loaded.emplace(place.info.name, std::vector<float>(span.begin(), span.end())).second);
    });
    return loaded;
  }
  void expect_refused(const ModelConfig& model, std::initializer_list<std::string_view> words) const {
    expect_error([&] { check_weights(folder_, model); }, words);
  }
  static FileChecksum save(const fs::path& path, const ModelConfig& model, const Loaded& values,
                           DType dtype) {
    WeightsWriter writer(path, model, {""}, dtype);
    const ParamLayout layout(model, 1);
    for (size_t b = 0; b < layout.buckets.size(); ++b)
      for (const ParamPlace& place : layout.places) {
        if (place.bucket != b) continue;
        Arena arena = Arena::host();
        const Tensor tensor = arena.alloc(MemoryTag::kData, place.info.name, DType::kF32, place.info.shape);
        std::ranges::copy(values.at(place.info.name), tensor.as<float>());
        writer.write(place.info, tensor);
      }
    return writer.commit();
  }
};

// In every dtype, in a matrix and in a norm, in one file or in several, before anything is computed
TEST_F(FamilyWeights, AValueThatIsNotFiniteIsNamedByItsPlace) {
  const auto bytes_of = [](DType dtype, float value) {
    if (dtype == DType::kF32) return little_endian(std::bit_cast<uint32_t>(value), 4);
    return little_endian(bf16_from_float(value), 2);
  };
  const auto damage = [](const fs::path& path, const std::string& tensor, int64_t at,
                         const std::string& bytes) {
    const auto base = [&] {
      const SafetensorsReader reader(path);
      const auto& entry = reader.entries().at(tensor);
      const auto& all = reader.entries();
      const std::byte* first = entry.bytes.data();
      for (const auto& [name, other] : all) first = std::min(first, other.bytes.data());
      int64_t size = 0;
      for (const auto& [name, other] : all) size += std::ssize(other.bytes);
      return static_cast<int64_t>(fs::file_size(path)) - size + (entry.bytes.data() - first);
    }();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(base + at * std::ssize(bytes));
    file << bytes;
  };
  for (const char* name : {"llama", "gpt2"}) {
    const std::vector<FamilyModel> all = family_models();
    const auto found = std::ranges::find(all, std::string_view(name), &FamilyModel::name);
    if (found == all.end()) continue;
    const ModelConfig& model = found->model;
    describe(model);
    const std::vector<FolderTensor> tensors = tensors_of(model);
    const FolderTensor& matrix = *std::ranges::find_if(
        tensors, [](const FolderTensor& tensor) { return tensor.shape.rank() == 2 && tensor.shape[0] > 2; });
    const int64_t columns = matrix.shape[1];
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const auto& [value, text] :
           {std::pair(INFINITY, "is inf"), std::pair(-INFINITY, "is -inf"), std::pair(NAN, "is nan")}) {
        write_tensors(file, tensors, dtype);
        damage(file, matrix.name, 2 * columns + 1, bytes_of(dtype, value));
        for (const HandOver hand_over : {HandOver::kFp32, HandOver::kAsStored})
          expect_error(
              [&] {
                load_weights(folder_, model, [](const ParamPlace&, const Tensor&) {},
                             {.hand_over = hand_over});
              },
              {"model.safetensors", matrix.name, "not finite", "[2, 1]", text});
        EXPECT_NO_THROW(
            load_weights(folder_, model, [](const ParamPlace&, const Tensor&) {}, {.values = Values::kAny}));
      }
  }
}

TEST_F(FamilyWeights, TheTableCoversEveryParameterOnce) {
  for (const FamilyModel& one : family_models()) {
    const Family& family = family_for(one.model);
    std::set<std::string> names;
    int64_t elements = 0;
    for (const ParamPlace& place : ParamLayout(one.model, 1).places) {
      int64_t next = 0;
      for (const TensorPiece& piece : pieces_of(family, one.model, place.info)) {
        EXPECT_EQ(piece.first, next) << one.name << " " << piece.name;
        EXPECT_GT(piece.rows, 0) << piece.name;
        EXPECT_EQ(piece.shape.numel(), piece.elements()) << piece.name;
        EXPECT_TRUE(names.insert(piece.name).second) << piece.name << " is the name of two";
        next += piece.layers * piece.rows;
        elements += piece.elements();
      }
      const bool is_matrix = place.info.decay;  // or biases of experts
      const int64_t rows = place.info.shape.numel() / (is_matrix ? place.info.shape[-1] : 1);
      EXPECT_EQ(next, rows - place.info.padding) << one.name << " " << place.info.name;
    }
    EXPECT_EQ(elements, one.model.parameters()) << one.name;
  }
}

TEST_F(FamilyWeights, NamesAndShapesAreThoseOfTransformers) {
  const auto expect = [](const FamilyModel& one, const std::map<std::string, Shape>& wanted,
                         size_t in_block) {
    std::map<std::string, Shape> found;
    for (const FolderTensor& tensor : tensors_of(one.model)) found[tensor.name] = tensor.shape;
    EXPECT_EQ(found.size(), 2 + (one.model.tied ? 0 : 1) + 2 * in_block) << one.name;
    for (const auto& [name, shape] : wanted)
      EXPECT_TRUE(found.contains(name) && found[name] == shape) << one.name << " " << name;
  };
  const std::vector<FamilyModel> all = family_models();
  const std::string block = "model.layers.1.";
  expect(all[1],
         {{"model.embed_tokens.weight", {61, 32}},
          {"model.norm.weight", {32}},
          {"lm_head.weight", {61, 32}},
          {block + "input_layernorm.weight", {32}},
          {block + "self_attn.q_proj.weight", {32, 32}},
          {block + "self_attn.k_proj.weight", {16, 32}},
          {block + "self_attn.v_proj.weight", {16, 32}},
          {block + "self_attn.o_proj.weight", {32, 32}},
          {block + "post_attention_layernorm.weight", {32}},
          {block + "mlp.gate_proj.weight", {24, 32}},
          {block + "mlp.up_proj.weight", {24, 32}},
          {block + "mlp.down_proj.weight", {32, 24}}},
         9);
  expect(all[7],
         {{block + "self_attn.q_proj.bias", {32}},
          {block + "self_attn.k_proj.bias", {16}},
          {block + "self_attn.v_proj.bias", {16}}},
         12);
  expect(all[8],
         {{block + "self_attn.q_proj.weight", {64, 32}},
          {block + "self_attn.v_proj.weight", {16, 32}},
          {block + "self_attn.o_proj.weight", {32, 64}},
          {block + "self_attn.q_norm.weight", {16}},
          {block + "self_attn.k_norm.weight", {16}}},
         11);
  expect(all[9],
         {{block + "self_attn.q_proj.bias", {32}},
          {block + "self_attn.v_proj.bias", {16}},
          {block + "self_attn.o_proj.bias", {32}},
          {block + "mlp.gate_proj.bias", {24}},
          {block + "mlp.up_proj.bias", {24}},
          {block + "mlp.down_proj.bias", {32}}},
         16);
  expect(all[10], {{block + "self_attn.o_proj.bias", {32}}}, 13);
  expect(all[11], {{block + "mlp.up_proj.bias", {24}}}, 12);
}

// Every value of every tensor arrives in its row, and the file that is written is the file that was read.
TEST_F(FamilyWeights, RoundTripsKeepEveryBit) {
  for (const FamilyModel& one : family_models()) {
    std::vector<FolderTensor> tensors = tensors_of(one.model);
    for (FolderTensor& tensor : tensors)  // at most 8 bits of mantissa: exact in every dtype
      for (float& value : tensor.values) value = static_cast<float>(std::lround(value * 0x1p12f) % 251 + 1);
    describe(one.model);
    write_tensors(file, tensors);
    const Loaded loaded = load(one.model);
    for (const ParamPlace& place : ParamLayout(one.model, 1).places)
      for (const TensorPiece& piece : pieces_of(family_for(one.model), one.model, place.info))
        for (int64_t i = 0; i < piece.layers * piece.rows; ++i)
          for (int64_t c = 0; c < piece.columns; ++c) {
            const int64_t layer = i / piece.rows, r = i % piece.rows,
                          in_file = piece.outer == 0 ? r : r % piece.inner * piece.outer + r / piece.inner,
                          at = layer * piece.rows * piece.columns +
                               (piece.transposed ? c * piece.rows + in_file : in_file * piece.columns + c),
                          row = piece.first + layer * piece.stride + r;
            ASSERT_EQ(loaded.at(place.info.name)[static_cast<size_t>(row * piece.columns + c)],
                      tensor_of(tensors, piece.name).values[static_cast<size_t>(at)])
                << one.name << " " << piece.name;
          }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      save(file, one.model, loaded, dtype);
      const std::string bytes = read_file(file);
      const Loaded again = load(one.model);
      EXPECT_EQ(again, loaded) << one.name << " " << name_of(dtype);
      save(folder_ / "again.safetensors", one.model, again, dtype);
      EXPECT_EQ(read_file(folder_ / "again.safetensors"), bytes) << one.name << " " << name_of(dtype);
    }
    write("model.safetensors", half_file(tensors));
    EXPECT_EQ(load(one.model), loaded) << one.name << " fp16";
  }
}

// The tensors of a folder are named by its own family, though the model is one of an earlier family, too.
TEST_F(FamilyWeights, AFolderHasTheTensorsOfItsModelType) {
  const std::vector<FamilyModel> all = family_models();
  ModelConfig model = std::ranges::find(all, "phi3", &FamilyModel::name)->model;
  const std::vector<FolderTensor> tensors = tensors_of(model);
  describe(model);
  write_tensors(file, tensors);
  const Loaded part = load(model);
  json fields = json::parse(read_file(folder_ / "config.json"));
  fields["partial_rotary_factor"] = 1.0;
  write_fields(folder_, fields);
  model.rope.share = 1;
  EXPECT_STREQ(family_of(model), "llama");
  EXPECT_EQ(load(model), part);
  const auto has = [&](const std::string& name, const Shape& shape) {
    return std::ranges::any_of(
        tensors, [&](const FolderTensor& one) { return one.name == name && one.shape == shape; });
  };
  EXPECT_TRUE(has("model.layers.1.mlp.gate_up_proj.weight", {48, 32}));
  EXPECT_TRUE(has("model.layers.0.self_attn.qkv_proj.weight", {128, 32}));
}

// Both names of its tensors, as transformers publishes and as it holds them
TEST_F(FamilyWeights, OfAModelWithImagesTheTensorsOfTextsAreRead) {
  const std::vector<FamilyModel> all = family_models();
  const ModelConfig model = std::ranges::find(all, "gemma3", &FamilyModel::name)->model;
  std::vector<FolderTensor> tensors = tensors_of(model);
  describe(model);
  write_tensors(file, tensors);
  const Loaded plain = load(model);
  json text = json::parse(read_file(folder_ / "config.json"));
  write_fields(folder_,
               {{"model_type", "gemma3"}, {"text_config", text}, {"vision_config", {{"layers", 2}}}});
  expect_refused(model, {"language_model.embed_tokens.weight"});

  const std::vector<FolderTensor> images = {{"vision_tower.encoder.layers.0.norm.weight", {4}, {1, 2, 3, 4}},
                                            {"multi_modal_projector.projection_weight", {2, 1}, {5, 6}}};
  for (const bool published : {true, false}) {
    std::vector<FolderTensor> with_images;
    for (FolderTensor tensor : tensors) {
      const std::string lead = "model.", text_lead = "language_model.";
      ASSERT_TRUE(tensor.name.starts_with(lead));
      tensor.name = published ? text_lead + tensor.name : lead + text_lead + tensor.name.substr(lead.size());
      with_images.push_back(tensor);
    }
    for (FolderTensor tensor : images) {
      if (!published) tensor.name = "model." + tensor.name;
      with_images.push_back(tensor);
    }
    write_tensors(file, with_images);
    EXPECT_EQ(load(model), plain) << published;
    const std::vector<std::string> notices = check_weights(folder_, model);
    ASSERT_EQ(notices.size(), 1u);
    EXPECT_NE(notices[0].find("2 tensors of the part for images, 24 B, are left out"), std::string::npos)
        << notices[0];

    // The head is tied to the table, whatever else a file says
    FolderTensor head{published ? "language_model.lm_head.weight" : "lm_head.weight",
                      {61, 32},
                      tensor_of(tensors, "model.embed_tokens.weight").values};
    with_images.push_back(head);
    write_tensors(file, with_images);
    EXPECT_EQ(load(model), plain) << published;
    with_images.back().values[3] += 1;
    write_tensors(file, with_images);
    expect_refused(model, {"lm_head.weight", "differ"});
    with_images.back() = {"audio_tower.weight", {1}, {1}};
    write_tensors(file, with_images);
    expect_refused(model, {"Gemma 3", "audio_tower.weight"});
  }
  write_fields(folder_, text);  // the model of texts has no tensors of images
  tensors.push_back(images[0]);
  write_tensors(file, tensors);
  expect_refused(model, {"Gemma 3", images[0].name});
}

TEST_F(FamilyWeights, JoinedLayersHaveOneAdapter) {
  const std::vector<FamilyModel> all = family_models();
  ModelConfig model = std::ranges::find(all, "phi3", &FamilyModel::name)->model;
  EXPECT_FALSE(splits_qkv(model));
  model.lora = {.rank = 3, .split_qkv = false};
  std::map<std::string, Shape> found;
  for (const ParamPlace& place : ParamLayout(model, 1).places)
    if (place.info.adapter != AdapterMatrix::kNone && place.info.block == 1)
      for (const TensorPiece& piece : pieces_of(family_for(model), model, place.info))
        found[piece.name] = piece.shape;
  const std::string block = "base_model.model.model.layers.1.";
  EXPECT_EQ(found.size(), 8u);
  EXPECT_EQ(found[block + "mlp.gate_up_proj.lora_A.weight"], (Shape{3, 32}));
  EXPECT_EQ(found[block + "mlp.gate_up_proj.lora_B.weight"], (Shape{48, 3}));
  EXPECT_EQ(found[block + "self_attn.qkv_proj.lora_A.weight"], (Shape{3, 32}));
  EXPECT_EQ(found[block + "self_attn.qkv_proj.lora_B.weight"], (Shape{128, 3}));
}

// A folder in bf16, with all 16 bits in use, in and out again.
TEST_F(FamilyWeights, ATensorInBf16IsWrittenWithTheSameBytes) {
  const ModelConfig model = family_models()[8].model;
  std::vector<FolderTensor> tensors = tensors_of(model);
  uint16_t bits = 1;
  for (FolderTensor& tensor : tensors)
    for (float& value : tensor.values) {
      do bits = static_cast<uint16_t>(bits * 25173u + 13849u);
      while ((bits & 0x7f80) == 0x7f80);  // not finite
      value = float_from_bf16(bits);
    }
  describe(model);
  write_tensors(file, tensors, DType::kBF16);
  const Loaded loaded = load(model);
  const fs::path written = folder_ / "out.safetensors";
  save(written, model, loaded, DType::kBF16);
  const SafetensorsReader before(file), after(written);
  ASSERT_EQ(before.entries().size(), after.entries().size());
  for (const auto& [name, entry] : before.entries()) {
    const SafetensorsReader::Entry& other = after.entries().at(name);
    EXPECT_EQ(other.dtype, "BF16");
    EXPECT_TRUE(std::ranges::equal(entry.bytes, other.bytes)) << name;
  }
}

TEST_F(FamilyWeights, Bf16IsRoundedToNearestEven) {
  SafetensorsWriter writer(file, {{"a", {5}, NumberFormat::kBF16}, {"b", {1}, NumberFormat::kF32}});
  writer.write(std::vector<float>{1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1.1p-8f, -0.0f, 0x1p-133f});
  writer.write(std::vector<float>{1 + 0x1p-20f});
  writer.commit();
  std::vector<float> a(5), b(1);
  const SafetensorsReader reader(file);
  reader.read("a", {5}, a);
  reader.read("b", {1}, b);
  EXPECT_EQ(a, (std::vector<float>{1, 1 + 0x1p-6f, 1 + 0x1p-7f, -0.0f, 0x1p-133f}));
  EXPECT_EQ(b[0], 1 + 0x1p-20f);
  SafetensorsWriter large(folder_ / "large", {{"a", {2}, NumberFormat::kBF16}});
  expect_error(
      [&] {
        large.write(std::vector<float>{1, 3.4028e38f});
      },
      {"a: ", "value 1 is 3.4028e+38", "bf16", "checkpoint.dtype=fp32"});
}

TEST_F(FamilyWeights, TensorsOfOneParameterMayLieInSeveralFiles) {
  for (const FamilyModel& one : family_models()) {
    const std::vector<FolderTensor> tensors = tensors_of(one.model);
    describe(one.model);
    write_tensors(file, tensors);
    const Loaded whole = load(one.model);
    fs::remove(file);
    std::vector<FolderTensor> parts[3];
    json map;
    for (size_t i = 0; i < tensors.size(); ++i) {
      parts[i % 3].push_back(tensors[i]);
      map[tensors[i].name] = fmt::format("model-{}.safetensors", i % 3);
    }
    for (size_t i = 0; i < 3; ++i) write_tensors(folder_ / fmt::format("model-{}.safetensors", i), parts[i]);
    write("model.safetensors.index.json", json{{"weight_map", map}}.dump());
    EXPECT_EQ(load(one.model), whole) << one.name;
    fs::remove(folder_ / "model.safetensors.index.json");
  }
}

TEST_F(FamilyWeights, WhatMayBeInAFileBesides) {
  for (const FamilyModel& one : family_models()) {
    describe(one.model);
    std::vector<FolderTensor> tensors = tensors_of(one.model);
    write_tensors(file, tensors);
    const Loaded plain = load(one.model);
    const std::string lead = one.family == "gpt2" ? "transformer." : "model.";
    if (one.family == "gpt2")
      tensors.push_back({"transformer.h.0.attn.bias", {1, 1, 1, 1}, {1}});
    else
      tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}, {1, 2, 3, 4}});
    if (one.model.tied) {
      const std::string table = one.family == "gpt2" ? "wte" : "embed_tokens";
      tensors.push_back({"lm_head.weight", {61, 32}, tensor_of(tensors, lead + table + ".weight").values});
    }
    write_tensors(file, tensors);
    EXPECT_EQ(load(one.model), plain) << one.name;
    if (one.model.tied) {
      tensors.back().values[5] += 1;
      write_tensors(file, tensors);
      expect_refused(one.model, {"lm_head.weight and ", "\"tie_word_embeddings\": false"});
      tensors.back().values[5] -= 1;
    }
    for (FolderTensor& tensor : tensors)  // as the bare model is saved
      if (tensor.name.starts_with(lead)) tensor.name = tensor.name.substr(lead.size());
    write_tensors(file, tensors);
    EXPECT_EQ(load(one.model), plain) << one.name;
    tensors.push_back({"layers.0.self_attn.q_proj.lora", {1}, {1}});
    write_tensors(file, tensors);
    expect_refused(one.model, {" the " + std::string(family_for(one.model).title) + " of",
                               "have: layers.0.self_attn.q_proj.lora"});
  }
}

TEST_F(FamilyWeights, MissingTensorsAndOtherShapesAreRefused) {
  const ModelConfig model = family_models()[7].model;
  describe(model);
  std::vector<FolderTensor> tensors = tensors_of(model);
  const std::string name = "model.layers.1.self_attn.k_proj.bias";
  FolderTensor& bias = tensor_of(tensors, name);
  bias.shape = {8};
  bias.values.resize(8);
  write_tensors(file, tensors);
  expect_refused(model, {name + " has shape [8]", "[16]"});
  std::erase_if(tensors, [&](const FolderTensor& tensor) { return tensor.name == name; });
  write_tensors(file, tensors);
  expect_refused(model, {"has no tensor " + name});
}

TEST_F(FamilyWeights, AFamilyHasOnlyItsOwnParameters) {
  const std::vector<FamilyModel> all = family_models();
  const ParamInfo positions{kPositionTable, {32, 32}, Init::kNormal};
  expect_error([&] { pieces_of(kLlama, all[1].model, positions); }, {"Llama has no position_table"});
  const ParamInfo norm{"blocks.1.attention.q_norm.weight", {8}, Init::kOne, false, 0, 1};
  expect_error([&] { pieces_of(kGpt2, all[0].model, norm); }, {"GPT-2 has no blocks.1.attention.q_norm"});
}

}  // namespace
}  // namespace tessera::testing

// The files for other programs: GGUF, llm.c's, and several safetensors files with an index.
#include <nlohmann/json.hpp>

#include "kernels/base/bf16.h"
#include "model/formats/folder.h"
#include "model/formats/gguf.h"
#include "model/formats/llama_cpp.h"
#include "model/formats/llm_c.h"
#include "model/formats/sharded_safetensors.h"
#include "model/formats/weights.h"
#include "model/presets.h"
#include "model/rope.h"
#include "tests/data/support.h"
#include "tests/model/formats/folder_support.h"
#include "tests/model_families.h"
#include "tests/model_variants.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct ExportedFormats : InTempFolder {
  // A folder of Hugging Face with a value of its own in every place
  fs::path make_folder(const std::string& name, const ModelConfig& model) const {
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    write_fields(folder, json::parse(hugging_face_config(model, DType::kF32).dump()));
    write_tensors(folder / "model.safetensors", tensors_of(model));
    return folder;
  }

  // Every tensor of a layout, written by `writer`
  template <class Writer>
  void write_all(const fs::path& folder, const ModelConfig& model, const WeightsLayout& layout,
                 Writer& writer) const {
    const WeightsFolder weights(folder, model);
    for (const ParamPlace& place : layout.order())
      weights.read(place, [&](const ParamPlace& read, const Tensor& values) {
        layout.visit(read.info, values,
                     [&](const FileTensor&, std::span<const float> rows) { writer.write(rows); });
      });
  }

  GgufReader gguf_of(const ModelConfig& model, NumberFormat format) const {
    const fs::path file = folder_ / "model.gguf";
    const LlamaCppLayout layout(model, format);
    GgufWriter writer(file, llama_cpp_fields(model, format, "a model"), layout.tensors());
    write_all(make_folder("source", model), model, layout, writer);
    writer.commit();
    return GgufReader(file);
  }
};

std::vector<float> floats_of(const GgufReader& file, const std::string& name) {
  const GgufReader::Entry& entry = file.tensors().at(name);
  std::vector<float> values(static_cast<size_t>(entry.tensor.shape.numel()));
  decode(entry.tensor.format, entry.bytes, values);
  return values;
}

template <class T>
T field(const GgufReader& file, const std::string& key) {
  const auto found = file.fields().find(key);
  if (found == file.fields().end()) throw std::runtime_error("no field " + key);
  return std::get<T>(found->second);
}

// Every byte of a small file, as the specification of GGUF has it
TEST_F(ExportedFormats, AGgufFileByHand) {
  const fs::path file = folder_ / "small.gguf";
  GgufWriter writer(
      file, {{"a.count", uint32_t{7}}, {"a.name", std::string("xyz")}, {"a.is", true}},
      {{.name = "w", .shape = {2, 3}, .format = NumberFormat::kBF16}, {.name = "b", .shape = {1}}});
  writer.write(std::vector<float>{1, 2, 3, 4, 5, 6});
  writer.write(std::vector<float>{-2});
  writer.commit();
  const auto u32 = [](uint64_t value) { return little_endian(value, 4); };
  const auto u64 = [](uint64_t value) { return little_endian(value, 8); };
  std::string wanted = "GGUF" + u32(3) + u64(2) + u64(3);
  wanted += u64(7) + "a.count" + u32(4) + u32(7);
  wanted += u64(6) + "a.name" + u32(8) + u64(3) + "xyz";
  wanted += u64(4) + "a.is" + u32(7) + '\1';
  wanted += u64(1) + "w" + u32(2) + u64(3) + u64(2) + u32(30) + u64(0);
  wanted += u64(1) + "b" + u32(1) + u64(1) + u32(0) + u64(32);
  wanted.resize((wanted.size() + 31) / 32 * 32, '\0');
  for (const uint64_t bf16 : {0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0})
    wanted += little_endian(bf16, 2);
  wanted.resize(wanted.size() + 20, '\0');
  wanted += u32(0xC0000000);
  wanted.resize(wanted.size() + 28, '\0');
  EXPECT_EQ(read_file(file), wanted);
}

// What llama.cpp calls a family
std::string in_llama_cpp(const std::string& family) {
  return family == "mistral" ? "llama" : family == "gemma3_text" ? "gemma3" : family;
}

TEST_F(ExportedFormats, AGgufFileHasAllTensorsOfEveryFamily) {
  for (const FamilyModel& one : family_models()) {
    if (one.family == "tessera" || one.model.experts) continue;  // refused: see below
    SCOPED_TRACE(one.name);
    const ModelConfig& model = one.model;
    if (model.rope.scaling == RopeScaling::kLlama3) continue;  // has a tensor more: see below
    const GgufReader file = gguf_of(model, NumberFormat::kF32);
    EXPECT_EQ(field<std::string>(file, "general.architecture"), in_llama_cpp(one.family));
    int64_t elements = 0;
    for (const auto& [name, entry] : file.tensors()) elements += entry.tensor.shape.numel();
    EXPECT_EQ(elements, model.parameters());
    EXPECT_EQ(file.tensors().contains("output.weight"), !model.tied);
    std::vector<FolderTensor> theirs = tensors_of(model);
    const bool gpt2 = one.family == std::string("gpt2");
    const FolderTensor& table =
        tensor_of(theirs, gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    EXPECT_EQ(floats_of(file, "token_embd.weight"), table.values);
    const FolderTensor& down =
        tensor_of(theirs, gpt2 ? "transformer.h.1.mlp.c_proj.weight" : "model.layers.1.mlp.down_proj.weight");
    const Shape found = file.tensors().at("blk.1.ffn_down.weight").tensor.shape;
    EXPECT_EQ(found, (Shape{model.channels, model.mlp_width}));
    // transformers keeps GPT-2's matrices as [in, out]
    const std::vector<float> values = floats_of(file, "blk.1.ffn_down.weight");
    EXPECT_EQ(values[1], down.values[gpt2 ? static_cast<size_t>(model.channels) : 1]);
  }
}

// Rotating neighbouring channels of the reordered rows gives the reordered rows of our rotation.
TEST_F(ExportedFormats, ALlamaInGgufRotatesNeighbours) {
  for (const FamilyModel& one : family_models()) {
    if (one.family == "gpt2" || one.family == "tessera" || one.family == "phi3") continue;  // one tensor
    if (one.model.experts) continue;
    SCOPED_TRACE(one.name);
    const ModelConfig& model = one.model;
    const GgufReader file = gguf_of(model, NumberFormat::kF32);
    std::vector<FolderTensor> theirs = tensors_of(model);
    const int64_t D = model.head_dim, C = model.channels;
    for (const auto& [ours, name, heads] :
         {std::tuple("attn_q", "q_proj", model.heads), std::tuple("attn_k", "k_proj", model.kv_heads)}) {
      const std::vector<float> found = floats_of(file, fmt::format("blk.0.{}.weight", ours));
      const std::vector<float>& wanted =
          tensor_of(theirs, fmt::format("model.layers.0.self_attn.{}.weight", name)).values;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t pair = 0; pair < D / 2; ++pair)
          for (const int64_t half : {0, 1})
            for (int64_t c = 0; c < C; ++c) {
              const bool neighbours = in_llama_cpp(one.family) == "llama";
              const int64_t row = h * D + (neighbours ? 2 * pair + half : pair + half * D / 2);
              ASSERT_EQ(found[static_cast<size_t>(row * C + c)],
                        wanted[static_cast<size_t>((h * D + pair + half * D / 2) * C + c)]);
            }
    }
    EXPECT_EQ(floats_of(file, "blk.0.attn_v.weight"),
              tensor_of(theirs, "model.layers.0.self_attn.v_proj.weight").values);
  }
}

TEST_F(ExportedFormats, RotaryAnglesInGguf) {
  for (const FamilyModel& one : family_models()) {
    if (one.model.positions != Positions::kRope || one.family == "tessera" || one.model.experts) continue;
    SCOPED_TRACE(one.name);
    const ModelConfig& model = one.model;
    const GgufReader file = gguf_of(model, NumberFormat::kF32);
    const std::string rope = in_llama_cpp(one.family) + ".rope.";
    EXPECT_EQ(field<uint32_t>(file, rope + "dimension_count"), model.rotated_channels());
    const auto theta = static_cast<double>(field<float>(file, rope + "freq_base"));
    const std::vector<RopeFactors> of_model = llama_cpp_rope_factors(model);
    const bool longrope = model.rope.scaling == RopeScaling::kLongrope;
    ASSERT_EQ(of_model.size(), longrope ? 2u : model.rope.scaling == RopeScaling::kLlama3 ? 1u : 0u);
    const std::vector<float> factors = of_model.empty() ? std::vector<float>() : of_model[0].values;
    if (longrope) {
      EXPECT_STREQ(of_model[0].name, "rope_factors_long.weight");
      EXPECT_STREQ(of_model[1].name, "rope_factors_short.weight");
      EXPECT_EQ(of_model[1].values, (std::vector<float>{1, 1.25, 1.5}));
      EXPECT_EQ(field<uint32_t>(file, rope + "scaling.original_context_length"), 8u);
      EXPECT_EQ(field<float>(file, rope + "scaling.attn_factor"), 1.125f);
    }
    const std::vector<double> frequencies = rope_frequencies(model, model.context);
    const bool scaled = file.fields().contains(rope + "scaling.type");
    EXPECT_EQ(scaled, model.rope.scaling == RopeScaling::kLinear ||
                          model.rope.scaling == RopeScaling::kYarn || longrope);
    if (model.rope.scaling == RopeScaling::kYarn) {  // llama.cpp multiplies by 1 + 0.1 ln(factor)
      EXPECT_EQ(field<std::string>(file, rope + "scaling.type"), "yarn");
      EXPECT_NEAR(field<float>(file, rope + "scaling.attn_factor") * (1 + 0.1 * std::log(4.0)), 1.25, 1e-6);
      EXPECT_EQ(field<uint32_t>(file, rope + "scaling.original_context_length"), 8u);
      EXPECT_EQ(field<float>(file, rope + "scaling.yarn_beta_fast"), 16);
      EXPECT_EQ(field<float>(file, rope + "scaling.yarn_beta_slow"), 2);
      EXPECT_EQ(field<float>(file, rope + "scaling.factor"), 4);
      continue;
    }
    const double factor = scaled && !longrope ? field<float>(file, rope + "scaling.factor") : 1;
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const double plain =
          std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(model.rotated_channels()));
      EXPECT_NEAR(plain / factor / (factors.empty() ? 1 : factors[i]), frequencies[i], 1e-7 * frequencies[i])
          << i;
    }
  }
}

TEST_F(ExportedFormats, VectorsAndPositionsStayInFp32) {
  const ModelConfig model{
      .vocab_size = 61, .context = 16, .layers = 2, .heads = 2, .channels = 32, .mlp_width = 40};
  for (const NumberFormat format : {NumberFormat::kF16, NumberFormat::kBF16, NumberFormat::kQ8}) {
    const GgufReader file = gguf_of(model, format);
    for (const auto& [name, entry] : file.tensors()) {
      const bool whole = entry.tensor.shape.rank() == 1 || name == "position_embd.weight";
      // 40 columns do not fill blocks of 32
      const bool halves = format == NumberFormat::kQ8 && name.ends_with("ffn_down.weight");
      EXPECT_EQ(entry.tensor.format, whole    ? NumberFormat::kF32
                                     : halves ? NumberFormat::kF16
                                              : format)
          << name;
    }
  }
}

TEST_F(ExportedFormats, LlamaCppRefusesByKey) {
  const ModelConfig plain{.vocab_size = 61, .context = 16, .layers = 2, .heads = 2, .channels = 32};
  const auto refused = [](ModelConfig model, auto&& change, std::initializer_list<std::string_view> words) {
    EXPECT_NO_THROW(check_llama_cpp(model, "runs/x"));
    change(model);
    expect_error([&] { check_llama_cpp(model, "runs/x"); }, words);
  };
  refused(plain, [](ModelConfig& m) { m.mlp = Mlp::kRelu; },
          {"runs/x has model.mlp=relu", "only with gelu", "--format hf"});
  refused(plain, [](ModelConfig& m) { m.scale_attention = false; }, {"model.scale_attention=false"});
  refused(plain, [](ModelConfig& m) { m.scale_attention_by_layer = true; },
          {"model.scale_attention_by_layer=true"});
  for (const FamilyModel& one : family_models()) {
    if (one.name == "gpt_oss") {
      refused(one.model, [](ModelConfig& m) { m.tied = true; }, {"model.tied=true", "only with false"});
      refused(one.model, [](ModelConfig& m) { m.rope = {.scaling = RopeScaling::kLlama3}; },
              {"model.rope.scaling=llama3"});
      refused(one.model,
              [](ModelConfig& m) {
                m.window = Windows({{.window = Windows::kFull}, {.window = 5}});
              },
              {"model.window=", "then one without"});
      EXPECT_EQ(llama_cpp_notices(one.model).size(), one.model.rope.truncate ? 0u : 1u);
    }
    if (one.name == "qwen3_moe_dense")
      expect_error([&] { check_llama_cpp(one.model, "runs/x"); }, {"model.experts.every=2", "only with 1"});
    if (one.name == "qwen3_moe")
      refused(one.model, [](ModelConfig& m) { m.experts.renormalise = false; },
              {"model.experts.renormalise=false", "only with true"});
    if (one.name == "olmoe") {
      ModelConfig olmoe = one.model;
      expect_error([&] { check_llama_cpp(olmoe, "runs/x"); }, {"model.kv_heads=2", "only with 4"});
      olmoe.kv_heads = olmoe.heads;
      refused(olmoe, [](ModelConfig& m) { m.experts.renormalise = true; },
              {"model.experts.renormalise=true", "only with false"});
    }
    if (one.name == "qwen2_moe") {
      ModelConfig every = one.model;
      every.experts.dense_layers = {};
      refused(every, [](ModelConfig& m) { m.experts.renormalise = true; },
              {"model.experts.renormalise=true", "only with false"});
      refused(every, [](ModelConfig& m) { m.tied = true; }, {"model.tied=true", "only with false"});
    }
    if (one.name == "granitemoe")
      refused(one.model, [](ModelConfig& m) { m.bias = Bias::kAttention; }, {"model.bias=attention"});
    if (one.name == std::string("llama"))
      for (const auto& [fast, slow, key] :
           {std::tuple(16, 1, "beta_fast=16"), std::tuple(32, 2, "beta_slow=2")})
        refused(one.model,
                [&](ModelConfig& m) {
                  m.rope = {.scaling = RopeScaling::kYarn,
                            .factor = 4,
                            .beta_fast = double(fast),
                            .beta_slow = double(slow)};
                },
                {key, "only with"});
    if (one.name == std::string("llama")) {
      refused(one.model, [](ModelConfig& m) { m.logit_cap = 30; }, {"model_type tessera", "--format hf"});
      refused(one.model, [](ModelConfig& m) { m.sparse = read_sparse("window:2"); },
              {"model.sparse=window:2", "full"});
      refused(one.model, [](ModelConfig& m) { m.window = Windows(31); },
              {"model.window=31", "full, or at least model.context"});
    }
    if (one.name == std::string("phi3")) {
      ModelConfig phi = one.model;
      phi.head_dim = 8;  // as wide as the channels
      phi.window = Windows(32);
      refused(phi, [](ModelConfig& m) { m.window = Windows(31); }, {"model.window=31", "Phi-3"});
      refused(phi, [](ModelConfig& m) { m.head_dim = 16; },
              {"model.head_dim=16", "model.channels / model.heads"});
    }
    if (one.name == std::string("qwen2"))
      refused(one.model, [](ModelConfig& m) { m.head_dim = 16; },
              {"model.head_dim=16", "model.channels / model.heads"});
    if (one.name == std::string("qwen3"))
      for (const RopeScaling scaling : {RopeScaling::kLlama3, RopeScaling::kLongrope})
        refused(one.model, [&](ModelConfig& m) { m.rope.scaling = scaling; },
                {fmt::format("model.rope.scaling={}", name_of(scaling))});
  }
}

// llama.cpp's scale of a Gemma 3's queries goes by its number of blocks, its windows by the place of each.
TEST_F(ExportedFormats, LlamaCppKnowsGemma3ByItsBlocks) {
  ModelConfig model = preset_model(Preset::kGemma3_1b);
  model.channels = 5376, model.heads = 32, model.kv_heads = 16, model.head_dim = 128;
  model.query_scalar = 168, model.layers = 62;  // of 27 billion parameters
  EXPECT_NO_THROW(check_llama_cpp(model, "x"));
  model.query_scalar = 0;
  expect_error([&] { check_llama_cpp(model, "x"); },
               {"model.query_scalar=128", "168 (model.channels / model.heads, in 62 blocks)", "--format hf"});
  model.layers = 48;
  EXPECT_NO_THROW(check_llama_cpp(model, "x"));
  model.query_scalar = 168;
  expect_error([&] { check_llama_cpp(model, "x"); }, {"model.query_scalar=168", "128 (model.head_dim)"});
  model.query_scalar = 0;
  for (const int64_t layers : {1, 2, 5, 6, 7, 12}) {
    model.layers = layers;
    model.window = Windows({{.window = 512, .blocks = 5}, {}}).cut(layers);
    EXPECT_NO_THROW(check_llama_cpp(model, "x")) << layers;
  }
  model.layers = 5, model.window = Windows({{.window = 512, .blocks = 4}, {}});
  expect_error([&] { check_llama_cpp(model, "x"); }, {"model.window=512*4,full"});
}

TEST_F(ExportedFormats, LlamaCppKnowsGemma2ByItsBlocks) {
  for (const Preset preset : {Preset::kGemma2_2b, Preset::kGemma2_9b, Preset::kGemma2_27b}) {
    const ModelConfig published = preset_model(preset);
    EXPECT_NO_THROW(check_llama_cpp(published, "x")) << name_of(preset);
    const auto refused = [&](auto&& change, std::initializer_list<std::string_view> words) {
      ModelConfig model = published;
      change(model);
      expect_error([&] { check_llama_cpp(model, "x"); }, words);
    };
    refused([](ModelConfig& m) { m.attention_cap = 0; }, {"model.attention_cap=0", "above 0"});
    refused([](ModelConfig& m) { m.logit_cap = 0; }, {"model.logit_cap=0", "above 0"});
    refused([](ModelConfig& m) { m.query_scalar = 100; }, {"model.query_scalar=100"});
    refused(
        [](ModelConfig& m) {
          m.window = Windows({{.window = 4096, .blocks = 2}, {}});
        },
        {"model.window=4096*2,full", "a block within a window"});
    ModelConfig full = published;
    full.window = {};
    for (const auto& [model, window] : {std::pair(published, 4096u), std::pair(full, 8192u)}) {
      std::map<std::string, GgufValue> fields;
      for (const GgufField& one : llama_cpp_fields(model, NumberFormat::kF32, "x"))
        fields[one.key] = one.value;
      EXPECT_EQ(std::get<float>(fields.at("gemma2.attn_logit_softcapping")), 50);
      EXPECT_EQ(std::get<float>(fields.at("gemma2.final_logit_softcapping")), 30);
      EXPECT_EQ(std::get<uint32_t>(fields.at("gemma2.attention.sliding_window")), window);
    }
  }
}

// llm.c's order, read by a list of transformers' names
TEST_F(ExportedFormats, AnLlmCFile) {
  const ModelConfig model{.vocab_size = 61, .context = 16, .layers = 3, .heads = 2, .channels = 24};
  const fs::path source = make_folder("source", model), file = folder_ / "model.bin";
  std::vector<FolderTensor> theirs = tensors_of(model);
  for (const NumberFormat format : {NumberFormat::kF32, NumberFormat::kBF16}) {
    LlmCWriter writer(file, model, format);
    write_all(source, model, LlmCLayout(model, format), writer);
    writer.commit();
    const std::string bytes = read_file(file);
    std::string header;
    for (const int value : {20240326, format == NumberFormat::kF32 ? 3 : 5, 16, 61, 3, 2, 24, 128})
      header += little_endian(static_cast<uint64_t>(value), 4);
    header.resize(1024, '\0');
    ASSERT_EQ(bytes.substr(0, 1024), header);
    size_t at = 1024;
    const size_t width = format == NumberFormat::kF32 ? 4 : 2;
    const auto next = [&] {
      float value = 0;
      decode(format, std::as_bytes(std::span(bytes).subspan(at, width)), {&value, 1});
      at += width;
      return value;
    };
    const auto rounded = [&](float value) {
      return format == NumberFormat::kF32 ? value : float_from_bf16(bf16_from_float(value));
    };
    const auto expect_tensor = [&](const std::string& name) {
      const FolderTensor& tensor = tensor_of(theirs, "transformer." + name);
      const bool turned =
          name.starts_with("h.") && tensor.shape.rank() == 2;  // [in, out] there, [out, in] here
      const auto rows = static_cast<size_t>(turned ? tensor.shape[1] : tensor.shape[0]),
                 columns = tensor.values.size() / rows;
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c)
          ASSERT_EQ(next(), rounded(tensor.values[turned ? c * rows + r : r * columns + c])) << name;
    };
    expect_tensor("wte.weight");
    for (int i = 0; i < (128 - 61) * 24; ++i) ASSERT_EQ(next(), 0) << "the padding of the vocabulary";
    expect_tensor("wpe.weight");
    for (const char* name : {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
                             "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                             "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"})
      for (int layer = 0; layer < 3; ++layer) expect_tensor(fmt::format("h.{}.{}", layer, name));
    expect_tensor("ln_f.weight");
    expect_tensor("ln_f.bias");
    EXPECT_EQ(at, bytes.size());
    EXPECT_NO_THROW(LlmCReader(file, model, format));
  }
}

TEST_F(ExportedFormats, LlmCRefusesByKey) {
  const ModelConfig plain{.vocab_size = 61, .context = 16, .layers = 2, .heads = 2, .channels = 32};
  const auto refused = [&](ModelConfig model, NumberFormat format,
                           std::initializer_list<std::string_view> words) {
    expect_error([&] { check_llm_c(model, format, "runs/x"); }, words);
  };
  EXPECT_NO_THROW(check_llm_c(plain, NumberFormat::kBF16, "runs/x"));
  refused(plain, NumberFormat::kF16, {"fp32 or bf16, found --dtype fp16"});
  for (const Variant& variant : variants_of(plain))
    refused(variant.model, NumberFormat::kF32, {"runs/x has model.", "Export it with --format hf"});
  for (const FamilyModel& one : family_models())
    if (one.family != std::string("gpt2"))
      refused(one.model, NumberFormat::kF32, {"runs/x is a", "GPT-2 alone"});
}

TEST_F(ExportedFormats, SeveralFilesWithAnIndex) {
  for (const FamilyModel& one : family_models()) {
    SCOPED_TRACE(one.name);
    const fs::path source = make_folder("source", one.model), made = folder_ / "made";
    for (const int64_t most : {1, 4000, 20'000, 1 << 30}) {
      fs::remove_all(made);
      fs::create_directories(made);
      fs::copy_file(source / "config.json", made / "config.json");
      const HuggingFaceLayout layout(one.model, NumberFormat::kF32);
      const std::vector<FileTensor> tensors = layout.tensors();
      ShardedSafetensorsWriter writer(made, tensors, most);
      write_all(source, one.model, layout, writer);
      const FileChecksums files = writer.commit();
      const bool single = most == 1 << 30;
      EXPECT_EQ(files.contains("model.safetensors"), single);
      EXPECT_EQ(files.size(), most == 1 ? tensors.size() + 1 : files.size())
          << "a file for each tensor, and the index";
      for (const auto& [name, file] : files) {
        EXPECT_EQ(checksum_of_file(made / name), file) << name;
        if (!name.ends_with(".safetensors")) continue;
        const SafetensorsReader reader(made / name);
        int64_t bytes = 0;
        for (const auto& [tensor, entry] : reader.entries()) bytes += std::ssize(entry.bytes);
        EXPECT_TRUE(bytes <= most || reader.entries().size() == 1) << name << " has " << bytes;
      }
      if (!single) {
        const json index = json::parse(read_file(made / "model.safetensors.index.json"));
        EXPECT_EQ(index["weight_map"].size(), tensors.size());
        EXPECT_EQ(index["metadata"]["total_size"], 4 * one.model.parameters());
      }
      const WeightsFolder ours(made, one.model), theirs(source, one.model);
      for (const ParamPlace& place : layout.order())
        ours.read(place, [&](const ParamPlace&, const Tensor& found) {
          theirs.read(place, [&](const ParamPlace&, const Tensor& wanted) {
            EXPECT_TRUE(std::ranges::equal(floats(found), floats(wanted))) << place.info.name;
          });
        });
    }
  }
}

TEST_F(ExportedFormats, TheFormatOfAFolderIsThatOfAllTensors) {
  const ModelConfig model = family_models().front().model;
  const fs::path source = make_folder("source", model);
  EXPECT_EQ(WeightsFolder(source, model).format(), NumberFormat::kF32);
  write_tensors(source / "model.safetensors", tensors_of(model), DType::kBF16);
  EXPECT_EQ(WeightsFolder(source, model).format(), NumberFormat::kBF16);
  const fs::path mxfp4 = fs::path(TESSERA_SOURCE_DIR) / "tests/fixtures/mxfp4";
  EXPECT_EQ(WeightsFolder(mxfp4, read_model_config(mxfp4).model).format(), NumberFormat::kMxfp4);
}

// ggml's block: the scale, then in byte i the codes of numbers i and i + 16
TEST(Mxfp4InGguf, ABlockByHand) {
  std::vector<float> values(64, 0.0f);
  values[0] = 12, values[1] = -1, values[15] = 0.9f, values[16] = 3, values[31] = -8.0f;
  values[32 + 5] = 0x1p-130f;  // smaller than half of the smallest scale
  std::vector<std::byte> bytes;
  const auto take = [&](std::span<const std::byte> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  encode(NumberFormat::kMxfp4, values, "w", take);
  ASSERT_EQ(std::ssize(bytes), bytes_of(NumberFormat::kMxfp4, 64));
  std::vector<uint8_t> wanted(34, 0);
  wanted[0] = 128;                                                   // 12 = 6 * 2^(128 - 127)
  wanted[1] = 7 | 3 << 4, wanted[2] = 9, wanted[16] = 1 | 0xE << 4;  // 6 and 1.5; -0.5; 0.5 and -4
  EXPECT_EQ(std::memcmp(bytes.data(), wanted.data(), wanted.size()), 0);
  std::vector<float> found(64);
  decode(NumberFormat::kMxfp4, bytes, found);
  values[15] = 1, values[32 + 5] = 0;
  EXPECT_EQ(found, values);
  std::vector<std::byte> again;
  encode(NumberFormat::kMxfp4, found, "w",
         [&](std::span<const std::byte> part) { again.insert(again.end(), part.begin(), part.end()); });
  EXPECT_EQ(again, bytes);
}

TEST_F(ExportedFormats, OnlyMatricesOfExpertsAreInMxfp4) {
  ModelConfig model;
  for (const FamilyModel& one : family_models())
    if (one.name == "gpt_oss") model = one.model;
  model.experts.width = 32;  // and 16 channels do not fill a block
  const GgufReader file = gguf_of(model, NumberFormat::kMxfp4);
  EXPECT_EQ(field<uint32_t>(file, "general.file_type"), 38u);
  for (const auto& [name, entry] : file.tensors()) {
    const bool whole =
        entry.tensor.shape.rank() == 1 || name.ends_with(".bias") || name.find("ffn_gate_inp") != name.npos;
    const bool of_experts = !whole && name.find("_exps.weight") != name.npos;
    EXPECT_EQ(entry.tensor.format, whole                                      ? NumberFormat::kF32
                                   : !of_experts                              ? NumberFormat::kBF16
                                   : entry.tensor.shape[2] % kMxfp4Block == 0 ? NumberFormat::kMxfp4
                                                                              : NumberFormat::kF16)
        << name;
  }
}

}  // namespace
}  // namespace tessera::testing

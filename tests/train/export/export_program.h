// A fixture that runs the export program on folders with a small model and a small tokenizer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "model/formats/folder.h"
#include "tests/data/support.h"
#include "tests/data/tokenizers/support.h"
#include "tests/model/formats/folder_support.h"
#include "tests/model_families.h"
#include "tests/process.h"

namespace tessera::testing {

inline constexpr int64_t kFixtureTokens = 704;  // ids of the fixtures' tokenizers

// Sizes that q8_0 takes
inline ModelConfig small_gpt2() {
  return {.vocab_size = kFixtureTokens, .context = 64, .layers = 2, .heads = 2, .channels = 64};
}
// 70 MB, so that an export takes a while
inline ModelConfig large_gpt2() {
  return {.vocab_size = kFixtureTokens, .context = 64, .layers = 6, .heads = 8, .channels = 512};
}
inline ModelConfig small_llama() {
  return with_llama_parts({.vocab_size = kFixtureTokens,
                           .context = 64,
                           .layers = 2,
                           .heads = 4,
                           .channels = 64,
                           .kv_heads = 2,
                           .head_dim = 32,
                           .mlp_width = 96,
                           .norm_epsilon = 1e-6f});
}

struct SmallModel {
  std::string name, tokenizer;  // of the fixtures
  ModelConfig model;
};
// One of each of llama.cpp's architectures, and of each way to scale rotary positions
inline std::vector<SmallModel> small_models() {
  const auto changed = [](const auto& how) {
    ModelConfig model = small_llama();
    how(model);
    return model;
  };
  const auto scaled = [&](RopeScaling scaling) {
    return changed([&](ModelConfig& m) {
      m.rope = {.theta = 5000, .scaling = scaling, .factor = 4};
      if (scaling != RopeScaling::kLinear) m.rope.original_context = 16;
    });
  };
  ModelConfig qwen2 = changed([](ModelConfig& m) { m.bias = Bias::kQkv, m.tied = true, m.head_dim = 16; });
  ModelConfig qwen3 = changed([](ModelConfig& m) { m.qk_norm = QkNorm::kHeads, m.kv_heads = 1; });
  ModelConfig biases = changed([](ModelConfig& m) { m.bias = Bias::kAll; });
  const ModelConfig olmo2 = changed([](ModelConfig& m) {
    m.norm_place = NormPlace::kAfter, m.qk_norm = QkNorm::kAllHeads, m.head_dim = 16;
  });
  const auto phi3 = [&](int64_t original_context) {  // 0: its angles are not scaled
    return changed([&](ModelConfig& m) {
      m.head_dim = 16;
      m.rope = {.theta = 5000, .share = 0.75};
      if (original_context == 0) return;
      m.rope.scaling = RopeScaling::kLongrope, m.rope.original_context = original_context;
      m.rope.short_factors = {1, 1, 1.25, 1.5, 2, 2.5}, m.rope.long_factors = {1, 1.5, 2, 4, 8, 20};
    });
  };
  ModelConfig phi3_window = phi3(0);
  phi3_window.window = Windows(phi3_window.context);
  // llama.cpp takes the long factors of the first, in a context of 256, and the short ones of the second, as
  // transformers does for the texts of check_llama_cpp.py.
  ModelConfig longrope_short = phi3(256);
  longrope_short.context = 512;
  ModelConfig llama_longrope = phi3(4);
  llama_longrope.rope.share = 1, llama_longrope.rope.attention_factor = 1.5;
  llama_longrope.rope.short_factors.resize(8, 3), llama_longrope.rope.long_factors.resize(8, 30);
  ModelConfig own_factor = scaled(RopeScaling::kYarn);
  own_factor.rope.attention_factor = 1.5;
  const auto experts = [&](const auto& how) {
    return changed([&](ModelConfig& m) {
      m.experts = {.count = 4, .active = 2, .width = 96, .renormalise = true};
      m.mlp_width = m.experts.width;
      how(m);
    });
  };
  return {{"gpt2", "gpt2", small_gpt2()},
          {"mixtral", "llama3", experts([](ModelConfig&) {})},
          {"qwen3_moe", "qwen2", experts([](ModelConfig& m) { m.qk_norm = QkNorm::kHeads; })},
          {"olmoe", "llama3", experts([](ModelConfig& m) {
             m.qk_norm = QkNorm::kAllHeads, m.head_dim = 16, m.kv_heads = 4, m.experts.renormalise = false;
           })},
          {"qwen2_moe", "qwen2", experts([](ModelConfig& m) {
             m.bias = Bias::kQkv, m.head_dim = 16, m.experts.renormalise = false;
             m.experts.shared_width = 128;
           })},
          {"granitemoe", "llama3", experts([](ModelConfig& m) {
             m.experts.router = Router::kSoftmaxOfChosen, m.experts.renormalise = false, m.head_dim = 16;
             m.embedding_scale = 3, m.residual_scale = 0.5, m.logit_divisor = 2, m.query_scalar = 25;
           })},
          {"gpt_oss", "llama3", experts([](ModelConfig& m) {
             m.experts.router = Router::kSoftmaxOfChosen, m.experts.renormalise = false;
             m.mlp = Mlp::kClampedSwiglu, m.bias = Bias::kAll, m.attention_sinks = true, m.layers = 3;
             m.window = Windows({{.window = 5}, {.window = Windows::kFull}});
             m.rope = {.theta = 5000, .scaling = RopeScaling::kYarn, .factor = 4, .original_context = 16};
           })},
          {"llama", "llama3", changed([](ModelConfig&) {})},
          {"llama_tied", "smollm2", changed([](ModelConfig& m) { m.tied = true; })},
          {"llama_linear", "llama3", scaled(RopeScaling::kLinear)},
          {"llama_llama3", "llama3", scaled(RopeScaling::kLlama3)},
          {"llama_yarn", "llama3", scaled(RopeScaling::kYarn)},
          {"llama_yarn_factor", "llama3", own_factor},
          {"llama_biases", "llama3", biases},
          {"qwen2", "qwen2", qwen2},
          {"qwen3", "qwen2", qwen3},
          {"olmo2", "llama3", olmo2},
          {"phi3", "llama3", phi3(0)},
          {"phi3_window", "llama3", phi3_window},
          {"phi3_longrope", "llama3", phi3(4)},
          {"phi3_longrope_short", "llama3", longrope_short},
          {"llama_longrope", "llama3", llama_longrope}};
}

// Weights as large as those of a trained model, so that logits differ
inline std::vector<FolderTensor> random_tensors(const ModelConfig& model) {
  std::vector<FolderTensor> tensors = tensors_of(model);
  uint64_t stream = 0;
  for (FolderTensor& tensor : tensors) {
    const Philox random(7, stream++);
    const bool norm = tensor.shape.rank() == 1 && tensor.name.ends_with("weight");
    for (size_t i = 0; i < tensor.values.size(); ++i)
      tensor.values[i] = static_cast<float>(norm ? 1 + 0.2 * random.normal(i) : 0.15 * random.normal(i));
  }
  return tensors;
}

class ExportProgram : public InTempFolder {
 protected:
  const std::filesystem::path& folder = folder_;

  // A folder as transformers saves it; `tokenizer` is one of the fixtures, "": none
  std::filesystem::path make_model(const std::string& name, const ModelConfig& model,
                                   const std::string& tokenizer) const {
    const std::filesystem::path made = folder / name;
    std::filesystem::create_directories(made);
    nlohmann::json config = nlohmann::json::parse(hugging_face_config(model, DType::kF32).dump());
    write_fields(made, config);
    write_tensors(made / "model.safetensors", random_tensors(model));
    if (!tokenizer.empty())
      std::filesystem::copy_file(tokenizer_fixture(tokenizer + ".json"), made / "tokenizer.json");
    return made;
  }

  // A gpt-oss with its experts in MXFP4, and a tokenizer of as many letters as it has tokens
  std::filesystem::path make_mxfp4_model(const std::string& name) const {
    std::filesystem::copy(TESSERA_SOURCE_DIR "/tests/fixtures/mxfp4", folder / name);
    nlohmann::json letters;
    for (int id = 0; id < 17; ++id) letters[std::string(1, static_cast<char>('a' + id))] = id;
    write(name + "/tokenizer.json",
          nlohmann::json{{"model", {{"type", "BPE"}, {"vocab", letters}, {"merges", nlohmann::json::array()}}},
                         {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                         {"decoder", {{"type", "ByteLevel"}}},
                         {"added_tokens", nlohmann::json::array()}}
              .dump());
    return folder / name;
  }

  ProcessResult run_export(const std::vector<std::string>& arguments, rlim_t most_file_bytes = 0) const {
    return run_process(EXPORT_BINARY, arguments, {.folder = folder, .most_file_bytes = most_file_bytes});
  }
  ProcessResult exported(const std::string& model, const std::string& format, const std::string& output,
                         std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {model, "--format", format, "--output", output});
    const ProcessResult result = run_export(more);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result;
  }
  void refused(const std::vector<std::string>& arguments, std::initializer_list<const char*> parts,
               rlim_t most_file_bytes = 0) const {
    const std::set<std::string> before = names();
    const ProcessResult result = run_export(arguments, most_file_bytes);
    EXPECT_EQ(result.status, 1) << result.out << result.error;
    EXPECT_EQ(result.out, "");
    for (const char* part : parts)
      EXPECT_NE(result.error.find(part), std::string::npos)
          << "wanted: " << part << "\nfound:  " << result.error;
    EXPECT_EQ(names(), before) << "something was left";
  }
};

}  // namespace tessera::testing

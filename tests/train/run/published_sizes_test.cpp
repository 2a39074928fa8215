// A folder of exactly the sizes that Qwen3-0.6B is published with, 267 more rows than its tokenizer has ids:
// by plan, which needs no weights, and with one narrow layer of random weights, and all rows, for real.
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/formats/layout.h"
#include "model/presets.h"
#include "tests/data/tokenizers/support.h"
#include "tests/shared_data.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kIds = 151669, kFirstAdded = 151643;  // of Qwen3's tokenizer

// The fields of Qwen/Qwen3-0.6B's config.json
json published_fields() {
  return json::parse(R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151643, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})");
}

// The small Qwen tokenizer of the fixtures, with pairs of its tokens until it has as many ids as Qwen3's
json large_tokenizer() {
  json tokenizer = json::parse(read_file(tokenizer_fixture("qwen2.json")));
  json &vocabulary = tokenizer["model"]["vocab"], &merges = tokenizer["model"]["merges"];
  std::vector<std::string> tokens(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) tokens[id.get<size_t>()] = token;
  tokens.erase(tokens.begin());  // <|endoftext|>, which is no part of a text
  int64_t next = std::ssize(vocabulary);
  for (const std::string& first : tokens)
    for (const std::string& second : tokens) {
      if (next == kFirstAdded || vocabulary.contains(first + second)) continue;
      vocabulary[first + second] = next++;
      merges.push_back({first, second});
    }
  json& added = tokenizer["added_tokens"];
  next = kFirstAdded;
  for (json& token : added)
    if (token["id"] != 0) token["id"] = next++;
  while (next < kIds) {
    json token = added[0];
    token["id"] = next, token["content"] = fmt::format("<|extra_{}|>", next);
    ++next;
    added.push_back(token);
  }
  return tokenizer;
}

// Weights in bf16: small ones of either sign, and norms of 1
void write_random_weights(const fs::path& path, const ModelConfig& model) {
  json header = json::object();
  int64_t end = 0;
  const std::vector<FileTensor> tensors = HuggingFaceLayout(model, NumberFormat::kBF16).tensors();
  for (const FileTensor& tensor : tensors) {
    json shape = json::array();
    for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + tensor.bytes()}}};
    end += tensor.bytes();
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << text;
  uint32_t random = 1;
  std::vector<uint16_t> values;
  for (const FileTensor& tensor : tensors) {
    const bool is_norm = tensor.shape.rank() == 1;
    for (int64_t left = tensor.shape.numel(); left > 0; left -= std::ssize(values)) {
      values.resize(static_cast<size_t>(std::min<int64_t>(left, 1 << 20)));
      for (uint16_t& value : values) {
        random = random * 1664525u + 1013904223u;
        value = is_norm ? 0x3f80 : static_cast<uint16_t>(0x3c00 | (random >> 16 & 0x80ff));
      }
      file.write(reinterpret_cast<const char*>(values.data()), std::ssize(values) * 2);
    }
  }
}

struct PublishedSizes : TrainProgram {
  PublishedSizes() : TrainProgram("") { fs::create_directory(folder / "qwen3"); }

  ProcessResult run(const char* program, const std::vector<std::string>& words) const {
    return run_process(program, words, {.folder = folder});
  }
  // What every run here adds to its command line
  std::vector<std::string> words(std::vector<std::string> first,
                                 const std::vector<std::string>& settings) const {
    for (const std::string& setting : settings) first.insert(first.end(), {"--set", setting});
    for (const char* setting :
         {"train.init_from=qwen3", "evaluation.every=0", "sampling.every=0", "train.report=false"})
      first.insert(first.end(), {"--set", setting});
    return first;
  }
  // One narrow layer and data of its own tokenizer. To random weights, all ids are about equally probable.
  void trains_and_answers() const {
    constexpr int64_t kChannels = 64;  // a checkpoint of 1,024 would have 2 GB
    json fields = published_fields();
    fields["num_hidden_layers"] = 1;
    fields["hidden_size"] = kChannels;
    write("qwen3/config.json", fields.dump());
    ModelConfig model = preset_model(Preset::kQwen3_06b);
    model.layers = 1;
    model.channels = kChannels;
    write_random_weights(folder / "qwen3/model.safetensors", model);
    const ProcessResult prepared =
        run(PREPARE_BINARY, {"text.txt", "--tokenizer", "qwen3", "--output", "data"});
    ASSERT_EQ(prepared.status, 0) << prepared.error;
    const std::vector<std::string> small{"data.train=data", "device=cpu", "train.steps=1",
                                         "train.sequence_length=32", "train.tokens_per_step=32"};
    for (const char* config : {"finetune.yaml", "lora_finetune.yaml"}) {
      SCOPED_TRACE(config);
      std::vector<std::string> settings = small;
      settings.push_back(std::string("train.folder=run_") + config);
      const ProcessResult trained = run(TRAIN_BINARY, words({config}, settings));
      ASSERT_EQ(trained.status, 0) << trained.out << trained.error;
      EXPECT_EQ(trained.out.find("is encoded by"), std::string::npos) << trained.out;
      const std::string loss = losses(std::string("run_") + config).front();
      EXPECT_NEAR(std::stod(loss.substr(loss.rfind(' '))), std::log(151936.0), 2.0) << loss;
      fs::remove_all(folder / (std::string("run_") + config));
    }
    const ProcessResult evaluated = run(EVALUATE_BINARY, {"qwen3", "--device", "cpu", "--data", "data",
                                                          "--sequences", "2", "--sequence-length", "32"});
    EXPECT_EQ(evaluated.status, 0) << evaluated.error;
    const ProcessResult generated =
        run(GENERATE_BINARY, {"qwen3", "--device", "cpu", "--prompt", "line 1", "--tokens", "2"});
    EXPECT_EQ(generated.status, 0) << generated.error;
  }
};

TEST_F(PublishedSizes, APlanNeedsNoWeights) {
  write("qwen3/config.json", published_fields().dump());
  for (const char* config : {"finetune.yaml", "lora_finetune.yaml", "qwen3_0.6b.yaml"}) {
    const ProcessResult plan = run(
        TRAIN_BINARY, words({config, "--plan", "--device-memory", "80GiB"}, {"train.sequence_length=4096"}));
    EXPECT_EQ(plan.status, 0) << plan.out << plan.error;
    EXPECT_NE(plan.out.find("model    596,049,920 parameters"), std::string::npos) << plan.out;
  }
  const ProcessResult decoding =
      run(GENERATE_BINARY, {"qwen3", "--plan", "--device-memory", "80GiB", "--context", "4096"});
  EXPECT_EQ(decoding.status, 0) << decoding.error;
}

TEST_F(PublishedSizes, OneLayerTrainsOnDataOfItsOwnTokenizer) {
  write("qwen3/tokenizer.json", large_tokenizer().dump());
  trains_and_answers();
}

TEST_F(PublishedSizes, SoItDoesWithThePublishedTokenizer) {
  const SharedFile tokenizer = shared_data("tokenizers/qwen2");
  if (!tokenizer.missing.empty()) GTEST_SKIP() << tokenizer.missing;
  for (const auto& file : fs::directory_iterator(tokenizer.path))
    fs::copy_file(file.path(), folder / "qwen3" / file.path().filename());
  trains_and_answers();
}

}  // namespace
}  // namespace tessera::testing

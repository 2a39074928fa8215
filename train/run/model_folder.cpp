#include "train/run/model_folder.h"

#include <set>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerationFile = "generation_config.json";  // of transformers

}  // namespace

fs::path find_model_folder(const std::string& name) {
  const fs::path folder(name);
  std::error_code error;
  check(fs::exists(folder, error), "there is no folder {}. Wanted: {}", name, kModelSources);
  check(fs::is_directory(folder, error), "{} is a file, wanted a folder: {}", name, kModelSources);
  if (fs::exists(folder / kModelFile, error)) return folder;
  for (const fs::path& checkpoints : {folder / "checkpoints", folder})
    if (const auto latest = latest_checkpoint(checkpoints)) return *latest;
  fail("{} holds no model: neither {} nor a checkpoint in checkpoints/. Wanted: {}", name, kModelFile,
       kModelSources);
}

std::unique_ptr<Tokenizer> find_tokenizer(const fs::path& folder, const std::string& source,
                                          const ModelConfig& model) {
  if (!source.empty()) return load_tokenizer(source);
  if (has_tokenizer(folder)) return load_tokenizer(folder);
  std::unique_ptr<Tokenizer> bytes = load_tokenizer(std::string(kBytesTokenizer));
  check(model.vocab_size == bytes->vocab_size(),
        "{} holds no tokenizer, and its vocabulary of {} is not that of bytes, {}: name one with --tokenizer "
        "FOLDER",
        folder.string(), model.vocab_size, bytes->vocab_size());
  return bytes;
}

std::vector<int32_t> find_end_tokens(const fs::path& folder, const Tokenizer& tokenizer) {
  std::set<int32_t> ids;
  const auto add = [&](const nlohmann::json& config) {
    const nlohmann::json found = config.is_object() ? config.value("eos_token_id", nlohmann::json()) : config;
    for (const nlohmann::json& id : found.is_array() ? found : nlohmann::json::array({found}))
      if (id.is_number_integer() && id >= 0 && id < tokenizer.vocab_size()) ids.insert(id.get<int32_t>());
  };
  if (tokenizer.end_of_text() >= 0) ids.insert(tokenizer.end_of_text());
  add(read_token_ids(folder));
  std::error_code error;
  if (fs::exists(folder / kGenerationFile, error)) add(read_json(folder / kGenerationFile));
  return {ids.begin(), ids.end()};
}

}  // namespace tessera

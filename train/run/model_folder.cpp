#include "train/run/model_folder.h"

#include <nlohmann/json.hpp>
#include <set>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/hub_name.h"
#include "kernels/base/json_text.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char *kGenerationFile = "generation_config.json",  // of transformers
    *kCheckpoints = "checkpoints";                                 // in the folder of a run

}  // namespace

ModelFolder find_model_folder(const std::string& name) {
  std::error_code error;
  check(fs::exists(name, error), "there is no folder {}. Name {}{}", name, kModelSources,
        hub_advice(name, HubFiles::kModel));
  check(fs::is_directory(name, error), "{} is a file. Name {}", name, kModelSources);
  const fs::path normal = fs::path(name).lexically_normal();
  const fs::path folder =
      normal.has_filename() ? normal : normal.parent_path();  // without a slash at its end
  check(!folder.filename().string().ends_with(".unfinished"),
        "{} is a checkpoint that is being written or was not finished. Name another, or its run's folder",
        name);
  if (fs::exists(folder / kModelFile, error)) {
    const bool in_run = folder.parent_path().filename() == kCheckpoints;
    return {.path = folder, .run = in_run ? folder.parent_path().parent_path() : fs::path{}};
  }
  const bool is_run = fs::is_directory(folder / kCheckpoints, error);
  const fs::path checkpoints = is_run ? folder / kCheckpoints : folder;
  if (const auto latest = latest_checkpoint(checkpoints))
    return {.path = *latest, .run = checkpoints.parent_path(), .newest = true};
  check(!is_run && folder.filename() != kCheckpoints,
        "the run in {} has no finished checkpoint yet: wait for one, or stop the run, which writes one",
        checkpoints.parent_path().string());
  return {.path = folder, .run = {}};  // read_model_config() says what it lacks
}

void check_present(const ModelFolder& folder) {
  check(folder.run.empty() || fs::exists(folder.path / kModelFile),
        "{} was removed while it was read: the run in {} keeps only its newest checkpoints. Name the run's "
        "folder, or keep more of them with --set checkpoint.keep=N",
        folder.path.string(), folder.run.string());
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

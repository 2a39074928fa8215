#include "train/run/model_folder.h"

#include <nlohmann/json.hpp>
#include <set>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/hub_name.h"
#include "kernels/base/json_text.h"
#include "train/config/find_config.h"
#include "train/config/load_config.h"
#include "train/report/metrics.h"
#include "train/report/run_record.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/run_lock.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char *kGenerationFile = "generation_config.json",  // of transformers
    *kCheckpoints = "checkpoints";                                 // in the folder of a run

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder / kCheckpoints, error) ||
         (fs::exists(folder / kRunConfig, error) && fs::exists(folder / kMetricsFile, error));
}

// "the first is due after step 500 of 10,000, and the run is at step 120"; "" if its files do not say
std::string first_checkpoint(const fs::path& run) {
  try {
    const Config config = load_config(run / kRunConfig, {}, /*resume=*/true);
    const int64_t every = config.checkpoint.every, steps = config.steps();
    const std::string due = every > 0 && (steps == 0 || every < steps) ? fmt::format("after step {}", every)
                                                                       : "after the last step";
    return fmt::format("the first is due {}, and the run is at step {}", due, read_run(run).last().step);
  } catch (const std::exception&) {  // before the first step, or of another version
    return "";
  }
}

[[noreturn]] void refuse_without_checkpoint(const fs::path& run) {
  const std::string due = first_checkpoint(run), writer = run_in(run);
  const std::string when = due.empty() ? "" : ": " + due;
  check(!writer.empty(),
        "the run in {} has no finished checkpoint{}. It is not running: start it again with ./train {} "
        "--resume "
        "auto, and stop it with Ctrl-C for a checkpoint of the step that it is at",
        run.string(), when, run.string());
  fail(
      "the run in {} has no finished checkpoint yet{}. Wait for it; or stop the run ({}) with Ctrl-C or "
      "SIGTERM, "
      "which writes one, and continue it later with ./train {} --resume",
      run.string(), when, writer, run.string());
}

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
  const fs::path checkpoints = is_run(folder) ? folder / kCheckpoints : folder;
  if (const auto latest = latest_checkpoint(checkpoints))
    return {.path = *latest, .run = checkpoints.parent_path(), .newest = true};
  if (is_run(folder) || folder.filename() == kCheckpoints)
    refuse_without_checkpoint(checkpoints.parent_path());
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
  if (!folder.empty() && has_tokenizer(folder)) return load_tokenizer(folder);
  std::unique_ptr<Tokenizer> bytes = load_tokenizer(std::string(kBytesTokenizer));
  check(model.vocab_size == bytes->vocab_size(),
        "{}, and the vocabulary of {} is not that of bytes, {}: name one with --tokenizer FOLDER",
        folder.empty() ? "a model of random weights has no tokenizer"
                       : fmt::format("{} holds no tokenizer", folder.string()),
        model.vocab_size, bytes->vocab_size());
  return bytes;
}

std::unique_ptr<Tokenizer> find_tokenizer_if_any(const fs::path& folder, const std::string& source,
                                                 const ModelConfig& model) {
  const bool is_there = !source.empty() || (!folder.empty() && has_tokenizer(folder)) ||
                        model.vocab_size == load_tokenizer(std::string(kBytesTokenizer))->vocab_size();
  return is_there ? find_tokenizer(folder, source, model) : nullptr;
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

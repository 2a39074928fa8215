#include "train/export/source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/chat/chat_form.h"
#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/byte_tokenizer.h"
#include "data/tokenizers/load_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "model/formats/folder.h"
#include "train/run/model_folder.h"
#include "train/run/run_lock.h"
#include "train/run/verify_checkpoint.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kGenerationConfig = "generation_config.json";

std::string name_of_model(const ModelFolder& found) {
  const fs::path named = found.run.empty() ? found.path : found.run;
  const std::string name = fs::absolute(named).lexically_normal().filename().string();
  return name.empty() ? "model" : name;
}

bool is_of_tokenizer(const std::string& file) { return file != kGenerationConfig; }

// The tokenizer `bytes` has no files: other programs read it as byte-level BPE.
void take_bytes(ExportSource& source) {
  TokenizerDefinition definition = bytes_as_bpe();
  const int32_t end = definition.added[0].id;
  source.tokenizer = make_bpe_tokenizer(std::move(definition), end, "", std::string(kBytesTokenizer));
  source.notices.emplace_back(
      "the tokenizer `bytes` is written as byte-level BPE without merges, which gives the same ids");
}

void load_tokenizer_of(ExportSource& source, const std::string& named) {
  if (!named.empty()) {
    std::erase_if(source.files, [](const auto& file) { return is_of_tokenizer(file.first); });
    if (named == kBytesTokenizer) return take_bytes(source);
    source.tokenizer = load_tokenizer(named);
    const fs::path path(named);
    for (auto& [file, bytes] : read_copied_files(fs::is_directory(path) ? path : path.parent_path()))
      if (is_of_tokenizer(file)) source.files[file] = std::move(bytes);
    source.files[kTokenizerFile] = source.tokenizer->json();
    return;
  }
  if (!has_tokenizer(source.folder)) {
    if (source.model.vocab_size == make_byte_tokenizer()->vocab_size()) return take_bytes(source);
    source.no_tokenizer = fmt::format(
        "{} holds no tokenizer (its text was bytes, or token ids from elsewhere)", source.folder.string());
    return;
  }
  try {
    source.tokenizer = load_tokenizer(source.folder.string());
  } catch (const Error& error) {
    source.no_tokenizer = error.what();
  }
}

// Checkpoints of models without token ids have the last id for all: see hugging_face_config().
void set_token_ids(ExportSource& source) {
  source.token_ids = read_token_ids(source.folder);
  json& ids = source.token_ids;
  const json last = source.model.vocab_size - 1;
  const bool placeholder = (!ids.contains("bos_token_id") || ids["bos_token_id"] == last) &&
                           (!ids.contains("eos_token_id") || ids["eos_token_id"] == last);
  if (!placeholder || !source.tokenizer || source.tokenizer->end_of_text() < 0) return;
  const std::span<const int32_t> before = source.tokenizer->before_text();
  ids["eos_token_id"] = source.tokenizer->end_of_text();
  ids["bos_token_id"] = before.empty() ? source.tokenizer->end_of_text() : before[0];
}

void check_vocabulary(const ExportSource& source) {
  if (!source.tokenizer) return;
  check(
      source.tokenizer->vocab_size() <= source.model.vocab_size,
      "the tokenizer has {} ids, and the model of {} only {}: it is another model's. Name the right one with "
      "--tokenizer PATH",
      source.tokenizer->vocab_size(), source.folder.string(), source.model.vocab_size);
}

ExportSource open_found(const ModelFolder& found, const SourceOptions& options, ExportProgress& progress) {
  ExportSource source{.folder = found.path,
                      .name = name_of_model(found),
                      .model = read_model_config(found.path, options.ignored_fields).model,
                      .weights = nullptr,
                      .files = {},
                      .token_ids = {},
                      .tokenizer = nullptr,
                      .no_tokenizer = "",
                      .notices = {}};
  source.weights = std::make_unique<WeightsFolder>(found.path, source.model,
                                                   FolderOptions{.ignored_fields = options.ignored_fields});
  source.files = read_copied_files(found.path);
  if (fs::exists(found.path / kStateFile)) {
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(found.path))
      if (is_tensor_file(entry.path().filename().string(), kWeightsStem))
        bytes += static_cast<int64_t>(entry.file_size());
    progress.begin("verifying", bytes);
    check_undamaged(found.path, CheckpointPart::kWeights);
    progress.add(bytes);
  }
  load_tokenizer_of(source, options.tokenizer);
  set_token_ids(source);
  check_vocabulary(source);
  const std::string writer = found.run.empty() ? "" : run_in(found.run);
  if (!writer.empty())
    source.notices.push_back(fmt::format("a run is training in {} ({}): this is {}{}", found.run.string(),
                                         writer, found.newest ? "its newest checkpoint, " : "",
                                         found.path.filename().string()));
  return source;
}

}  // namespace

ExportSource open_source(const SourceOptions& options, ExportProgress& progress) {
  return read_model_folder(options.folder,
                           [&](const ModelFolder& found) { return open_found(found, options, progress); });
}

std::string chat_template_of(const ExportSource& source) {
  if (const auto file = source.files.find(kChatTemplateFile); file != source.files.end()) return file->second;
  if (const auto file = source.files.find(kTokenizerConfigFile); file != source.files.end()) {
    const json config = parse_json(file->second, (source.folder / kTokenizerConfigFile).string());
    const auto found = config.is_object() ? config.find("chat_template") : config.end();
    if (found != config.end() && found->is_string()) return *found;
    if (found != config.end() && found->is_array())  // several, of which one is the default
      for (const json& one : *found)
        if (one.is_object() && one.value("name", json()) == "default" && one.contains("template"))
          return text_value(one, "template", kTokenizerConfigFile);
  }
  const auto known = source.tokenizer ? guess_chat_form(*source.tokenizer) : std::nullopt;
  return known ? known->jinja : "";
}

json token_ids_with_ends(const ExportSource& source) {
  json ids = source.token_ids;
  const auto file = source.files.find(kGenerationConfig);
  if (file == source.files.end()) return ids;
  const json generation = parse_json(file->second, (source.folder / kGenerationConfig).string());
  const auto list_of = [](const json& object) {
    const json found = object.is_object() ? object.value("eos_token_id", json()) : json();
    return found.is_array() ? found : found.is_null() ? json::array() : json::array({found});
  };
  json ends = list_of(ids);
  for (const json& id : list_of(generation))
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  if (!ends.empty()) ids["eos_token_id"] = ends;
  return ids;
}

TokenizerDefinition definition_of(const ExportSource& source) {
  check(source.tokenizer != nullptr,
        "a GGUF file holds the tokenizer, and {}. Name one with --tokenizer PATH, or export with --format hf",
        source.no_tokenizer);
  return read_tokenizer_json(source.tokenizer->json(), "the tokenizer");
}

}  // namespace tessera

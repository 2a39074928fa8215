// The model that is exported: the weights of a folder, its tokenizer, and the ids at which texts end.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/tokenizer.h"
#include "model/formats/weights.h"
#include "train/export/progress.h"
#include "train/run/checkpoint_files.h"

namespace tessera {

struct ExportSource {
  std::filesystem::path folder;  // with config.json and the weights
  std::string name;              // the name of the run or the folder, for people
  ModelConfig model;
  std::unique_ptr<WeightsFolder> weights;
  CopiedFiles files;  // files of the tokenizer, and generation_config.json
  // bos_token_id, eos_token_id and pad_token_id of config.json. If the config.json is a checkpoint's and has
  // none of these: the tokenizer's end of text
  nlohmann::json token_ids;
  std::unique_ptr<Tokenizer> tokenizer;  // null: there is none, or it cannot be read
  std::string no_tokenizer;              // if tokenizer is null: why
  std::vector<std::string> notices;
};

struct SourceOptions {
  std::string folder;                            // as find_model_folder() takes it
  std::string tokenizer = "";                    // as load_tokenizer() takes it; "": that of the folder
  std::vector<std::string> ignored_fields = {};  // as read_model_config() takes them
};
// The files stay open, because a run may remove the checkpoint meanwhile. Error: no such model, or a damaged
// one; a checkpoint that has just been removed. The message says what to do.
ExportSource open_source(const SourceOptions& options, ExportProgress& progress);

// The chat template in Jinja: the folder's; otherwise the one whose markers the tokenizer has; "": none
std::string chat_template_of(const ExportSource& source);

// token_ids, where the end of text in config.json is followed by the further ones that generation_config.json
// names
nlohmann::json token_ids_with_ends(const ExportSource& source);

// The tokenizer's definition. Error: there is none; the message says what to do
TokenizerDefinition definition_of(const ExportSource& source);

}  // namespace tessera

// A trained model as programs that use it find it: its folder, its tokenizer, its weights.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/config.h"

namespace tessera {

// What find_model_folder() takes, for the help of programs
inline constexpr const char* kModelSources =
    "A checkpoint, the folder of a run (its newest checkpoint), or a folder that transformers wrote";

// The folder with config.json that `name` means. Error: no such folder; a folder that holds neither a model
// nor checkpoints.
std::filesystem::path find_model_folder(const std::string& name);

// The tokenizer named by `source` as load_tokenizer() takes it, or, if that is empty, that of the folder;
// where it has none, and the vocabulary is that of bytes, `bytes`. Error: none is found.
std::unique_ptr<Tokenizer> find_tokenizer(const std::filesystem::path& folder, const std::string& source,
                                          const ModelConfig& model);

// The tokens that end a text, each once: the tokenizer's end of text, and the eos_token_id of config.json and
// of generation_config.json in the folder
std::vector<int32_t> find_end_tokens(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace tessera

// A trained model as programs find it: its folder, its tokenizer, its weights
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "kernels/base/check.h"
#include "model/config.h"
#include "train/run/checkpoint_files.h"

namespace tessera {

// What find_model_folder() takes, for the help of programs
inline constexpr const char* kModelSources =
    "a checkpoint, the folder of a run (its newest checkpoint), or a folder that transformers wrote";

struct ModelFolder {
  std::filesystem::path path;  // the folder with the model
  std::filesystem::path run;   // the run that it is a checkpoint of; empty: none is known
  bool newest = false;         // it was chosen as the newest checkpoint of the run
};

// The folder that `name` means. `name` may be a checkpoint, a run's folder or its folder `checkpoints`, or a
// folder of another program, which read_model_config() accepts or refuses. Error: no such folder; a
// checkpoint that is not finished; a run without a finished checkpoint.
ModelFolder find_model_folder(const std::string& name);

// A run in training removes all but its newest checkpoints. Error: the run has removed this one; the message
// says what to do.
void check_present(const ModelFolder& folder);

// Calls read(folder) with the folder that `name` means; calls it again if a run removed its newest checkpoint
// meanwhile. Error: as find_model_folder(), check_present() and read().
template <class Read>
auto read_model_folder(const std::string& name, Read&& read) {
  constexpr int kTries = 5;
  for (int i = 1;; ++i) {
    const ModelFolder found = find_model_folder(name);
    try {
      return read(found);
    } catch (const std::exception&) {
      if (std::filesystem::exists(found.path / kModelFile)) throw;
      if (!found.newest || i == kTries) {
        check_present(found);
        throw;
      }
    }
  }
}

// The tokenizer that `source` names, as load_tokenizer() takes it. If `source` is empty: the folder's
// tokenizer, or `bytes` if the folder has none and the vocabulary is that of bytes. `folder`: empty for
// random weights. Error: no tokenizer is found.
std::unique_ptr<Tokenizer> find_tokenizer(const std::filesystem::path& folder, const std::string& source,
                                          const ModelConfig& model);
// The same, but null if no tokenizer is found: token shards need none
std::unique_ptr<Tokenizer> find_tokenizer_if_any(const std::filesystem::path& folder,
                                                 const std::string& source, const ModelConfig& model);

// The tokens that end a text, each once: the tokenizer's end of text, and the eos_token_id of config.json and
// of generation_config.json in the folder
std::vector<int32_t> find_end_tokens(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace tessera

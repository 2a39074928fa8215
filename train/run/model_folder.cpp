#include "train/run/model_folder.h"

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"

namespace tessera {

namespace fs = std::filesystem;

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

}  // namespace tessera

// RunData: the token streams that a configuration names, their loaders and their tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "data/loader.h"
#include "data/tokenizers/tokenizer.h"
#include "train/config/config.h"
#include "train/run/run_state.h"

namespace tessera {

class RunData {
 public:
  // Error: data that cannot be opened, or is too short for one sequence to train on and, if the run
  // evaluates, one to hold out. A run that never evaluates (evaluation.every: 0) opens no validation data. It
  // trains on the same tokens as one that does, or on all tokens if there are too few to hold any out.
  // `shift`: of the training sequences, as Loader says; data.shift may leave it to a checkpoint.
  RunData(const Config& config, bool shift);
  RunData(const RunData&) = delete;  // the loaders point into it
  RunData& operator=(const RunData&) = delete;

  const TokenStream& stream() const { return train_stream_; }
  const TokenStream* validation_stream() const {  // null: a part of stream()
    return validation_stream_ ? &*validation_stream_ : nullptr;
  }
  const Loader& train() const { return *train_; }
  bool evaluates() const { return validation_.has_value(); }
  const Loader& validation() const { return *validation_; }  // where it evaluates
  DataFingerprint fingerprint() const;                       // reads some hundred kilobytes
  // Verifies shards that have checksums, unless they are too large. Returns notices. Error: a damaged shard.
  std::vector<std::string> verify() const;
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  // none for shards that do not name theirs

 private:
  TokenStream train_stream_;
  std::optional<TokenStream> validation_stream_;  // if it is not a part of train_stream_
  std::optional<Loader> train_, validation_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// The text of `data.train: builtin`: the corpus that the build put beside the program, or that was installed
std::filesystem::path builtin_corpus();

}  // namespace tessera

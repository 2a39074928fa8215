// RunData: the token streams that a configuration names, their sequences and their tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/log_probs.h"
#include "data/packing.h"
#include "data/sequences.h"
#include "data/teacher_logits.h"
#include "data/tokenizers/tokenizer.h"
#include "train/config/config.h"
#include "train/run/run_state.h"

namespace tessera {

class RunData {
 public:
  // A source of data.train
  struct Source {
    TokenStream stream;
    double weight = 1;
    TokenRange range = {};                        // the part that is not held out
    int64_t sequences = 0;                        // of the range
    const Packing* packing = nullptr;             // null: documents are joined
    int64_t cut_pairs = 0;                        // pairs that were cut: see PackedLoader
    bool pairs = false;                           // its sequences consist of pairs of documents
    std::optional<LogProbs> log_probs = {};       // with train.stored_reference
    std::unique_ptr<TeacherLogits> teacher = {};  // with train.teacher_logits
  };

  // A run that never evaluates (evaluation.every: 0) opens no validation data. It trains on the same tokens
  // as a run that evaluates, or on all tokens if there are too few to hold any out. `shift`: for the training
  // sequences, as Loader describes; data.shift may leave the choice to a checkpoint. Error: data cannot be
  // opened; data is too short for one sequence to train on or, if the run evaluates, for one to hold out;
  // with data.documents=mask, data does not say where its documents begin. With train.stored_reference also
  // the errors of read_log_probs(); with train.teacher_logits those of TeacherLogits, and logits that do not
  // fit the configuration.
  RunData(const Config& config, bool shift);
  RunData(const RunData&) = delete;  // the loaders point into it
  RunData& operator=(const RunData&) = delete;

  const std::vector<Source>& sources() const { return sources_; }
  const TokenStream* validation_stream() const {  // null: validation uses parts of the sources
    return validation_stream_ ? &*validation_stream_ : nullptr;
  }
  std::vector<const LogProbs*> log_probs() const;            // for all streams
  std::vector<const TeacherLogits*> teacher_logits() const;  // for all streams to train on
  bool has_weights() const;                                  // some sequences to train on have weights of the
                                                             // loss
  const SequenceSource& train() const { return *train_; }
  bool evaluates() const { return validation_ != nullptr; }
  const SequenceSource& validation() const { return *validation_; }  // if the run evaluates
  std::vector<std::filesystem::path> paths() const;                  // of the data to train on
  DataFingerprint fingerprint() const;                               // reads some hundred kilobytes of the
                                                                     // data
  // Where the sequence at a position of train() comes from: "fineweb/train_000001.bin, document 17, tokens 5
  // to 90; ..."; or where one of its tokens comes from
  std::string origin(int64_t position, std::optional<int64_t> token = {}) const;
  // Verifies the shards that have checksums, unless they are too large. Returns notices. Error: a shard is
  // damaged.
  std::vector<std::string> verify() const;
  std::vector<std::string> packing_notices() const;                // about documents that were cut or left
                                                                   // out
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  // null for shards that do not name theirs

 private:
  struct Part;
  Part joined(const Config& config, Source& source, bool shift) const;
  Part packed(const Config& config, Source& source) const;

  std::vector<Source> sources_;
  std::optional<TokenStream> validation_stream_;  // if it is not a part of sources_
  std::optional<LogProbs> validation_log_probs_;
  std::unique_ptr<SequenceSource> train_, validation_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// The stream of the data that a path of data.train names: see TokenStream::open(). `tokenizer`: for texts;
// null: tokens are their bytes
TokenStream open_data(const std::string& name, int64_t vocab_size, const Tokenizer* tokenizer = nullptr);

// The text of `data.train: builtin`: the corpus that the build put next to the program, or that was installed
std::filesystem::path builtin_corpus();

}  // namespace tessera

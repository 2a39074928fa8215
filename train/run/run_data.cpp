#include "train/run/run_data.h"

#include "data/dataset_check.h"
#include "kernels/base/check.h"
#include "train/config/find_config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TokenStream open(const std::string& name, int64_t vocab_size) {
  TokenStream stream = TokenStream::open(name == kBuiltinData ? builtin_corpus() : fs::path(name));
  stream.require_tokens_below(vocab_size);
  return stream;
}

}  // namespace

RunData::RunData(const Config& config, bool shift)
    : train_stream_(open(config.data.train, config.model.vocab_size)) {
  const int64_t T = config.sequence_length();
  const bool evaluates = config.evaluation.every > 0;
  const auto loader = [&](const TokenStream& stream, TokenRange range, bool trains) {
    return Loader({.stream = &stream,
                   .first_token = range.first_token,
                   .token_count = range.token_count,
                   .sequence_length = T,
                   .seed = static_cast<uint64_t>(config.train.seed),
                   .shuffle = trains && config.data.shuffle,
                   .shift = trains && shift});
  };
  TokenRange train_range{0, train_stream_.size()};
  if (config.data.validation.empty()) {
    const SplitOptions options{.token_count = train_stream_.size(),
                               .validation_fraction = config.data.validation_fraction,
                               .sequence_length = T};
    if (evaluates || can_split(options)) {
      const TrainValidationSplit split = split_train_validation(options);
      train_range = split.train;
      if (evaluates) validation_.emplace(loader(train_stream_, split.validation, false));
    }
  } else if (evaluates) {
    validation_stream_ = open(config.data.validation, config.model.vocab_size);
    validation_.emplace(loader(*validation_stream_, {0, validation_stream_->size()}, false));
  }
  train_.emplace(loader(train_stream_, train_range, true));
  tokenizer_ = train_stream_.load_tokenizer();
}

DataFingerprint RunData::fingerprint() const {
  DataFingerprint found{
      .train = fingerprint_of(train_stream_), .train_range = train_->range(), .validation = std::nullopt};
  if (validation_stream_) found.validation = fingerprint_of(*validation_stream_);
  return found;
}

std::vector<std::string> RunData::verify() const {
  std::vector<std::string> notices{verify_at_start(train_stream_)};
  if (validation_stream_) notices.push_back(verify_at_start(*validation_stream_));
  std::erase(notices, "");
  return notices;
}

fs::path builtin_corpus() {
  for (const fs::path& folder : shipped_folders()) {
    std::error_code error;
    if (fs::is_regular_file(folder / "corpus.txt", error)) return folder / "corpus.txt";
  }
  fail(
      "the built-in corpus {} is missing. Build it with cmake --build FOLDER --target corpus, or name a file "
      "with --set data.train=PATH",
      (shipped_folders()[0] / "corpus.txt").string());
}

}  // namespace tessera

#include "train/run/run_data.h"

#include <fmt/ranges.h>

#include "data/dataset_check.h"
#include "data/mixture.h"
#include "data/packed_loader.h"
#include "kernels/base/check.h"
#include "train/config/find_config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Loader> load(const Config& config, const TokenStream& stream, TokenRange range) {
  return std::make_unique<Loader>(LoaderOptions{.stream = &stream,
                                                .first_token = range.first_token,
                                                .token_count = range.token_count,
                                                .sequence_length = config.sequence_length(),
                                                .shuffle = false});
}

// In the same order whatever the run's seed is, so that validation losses compare
std::unique_ptr<PackedLoader> pack(const Config& config, const TokenStream& stream, int64_t first,
                                   const std::optional<LogProbs>& log_probs) {
  return std::make_unique<PackedLoader>(
      PackedLoaderOptions{.stream = &stream,
                          .first_document = first,
                          .document_count = documents_of(stream).count() - first,
                          .sequence_length = config.sequence_length(),
                          .shuffle = false,
                          .answers = config.train.loss == LossKind::kKto,
                          .log_probs = log_probs ? &*log_probs : nullptr});
}

std::unique_ptr<TeacherLogits> read_teacher(const Config& config, const TokenStream& stream) {
  auto teacher = std::make_unique<TeacherLogits>(stream);
  const TeacherLogitsFacts& facts = teacher->facts();
  const auto& train = config.train;
  const std::string file = teacher_logits_file(stream).string(),
                    again = teacher->again(facts.model, train.teacher_logits, train.distillation.temperature,
                                           config.sequence_length());
  check(facts.vocab_size == config.model.vocab_size,
        "{} is of a teacher with a vocabulary of {} tokens, and model.vocab_size is {}: a teacher and its "
        "student share a tokenizer and the size of the vocabulary",
        file, facts.vocab_size, config.model.vocab_size);
  check(facts.largest == train.teacher_logits,
        "{} has {} logits of each token, and train.teacher_logits is {}: set train.teacher_logits={}, or {}",
        file, facts.largest, train.teacher_logits, facts.largest, again);
  check(facts.temperature == train.distillation.temperature,
        "{} has what the other tokens have together at the temperature {}, and "
        "train.distillation.temperature is {}: set that one, or {}",
        file, facts.temperature, train.distillation.temperature, again);
  teacher->check_sequences(config.sequence_length());
  return teacher;
}

std::unique_ptr<SequenceSource> one_of(std::vector<Mixture::Part> parts) {
  if (parts.empty()) return nullptr;
  if (parts.size() == 1) return std::move(parts[0].source);
  return std::make_unique<Mixture>(std::move(parts));
}

}  // namespace

// One source
struct RunData::Part {
  std::unique_ptr<SequenceSource> train,
      validation;  // validation: null if nothing is held out to evaluate on
};

RunData::Part RunData::joined(const Config& config, Source& source, bool shift) const {
  Part part;
  const DocumentIndex* documents = source.stream.documents();
  check(!documents || !documents->has_weights(),
        "{} has samples with weights, which data.documents=join does not take: set data.documents=mask",
        source.stream.path().string());
  source.range = {0, source.stream.size()};
  const SplitOptions options{.token_count = source.stream.size(),
                             .validation_fraction = config.data.validation_fraction,
                             .sequence_length = config.sequence_length()};
  const bool evaluates = config.evaluation.every > 0;
  if (config.data.validation.empty() && (evaluates || can_split(options))) {
    const TrainValidationSplit split = split_train_validation(options);
    source.range = split.train;
    if (evaluates) part.validation = load(config, source.stream, split.validation);
  }
  part.train = std::make_unique<Loader>(LoaderOptions{.stream = &source.stream,
                                                      .first_token = source.range.first_token,
                                                      .token_count = source.range.token_count,
                                                      .sequence_length = config.sequence_length(),
                                                      .seed = static_cast<uint64_t>(config.train.seed),
                                                      .shuffle = config.data.shuffle,
                                                      .shift = shift});
  return part;
}

RunData::Part RunData::packed(const Config& config, Source& source) const {
  Part part;
  int64_t documents = documents_of(source.stream).count();
  const bool evaluates = config.evaluation.every > 0;
  if (config.data.validation.empty() && (evaluates || documents > 1)) {
    documents = documents_to_train_on(source.stream, config.data.validation_fraction);
    if (evaluates) part.validation = pack(config, source.stream, documents, source.log_probs);
  }
  auto train = std::make_unique<PackedLoader>(
      PackedLoaderOptions{.stream = &source.stream,
                          .first_document = 0,
                          .document_count = documents,
                          .sequence_length = config.sequence_length(),
                          .seed = static_cast<uint64_t>(config.train.seed),
                          .shuffle = config.data.shuffle,
                          .answers = config.train.loss == LossKind::kKto,
                          .log_probs = source.log_probs ? &*source.log_probs : nullptr,
                          .teacher = source.teacher.get()});
  source.range = train->range();
  source.packing = &train->packing();
  source.cut_pairs = train->cut_pairs();
  source.pairs = train->has_pairs();
  part.train = std::move(train);
  return part;
}

RunData::RunData(const Config& config, bool shift) {
  for (const DataSource& source : config.data.train)
    sources_.push_back({.stream = open_data(source.path, config.model.vocab_size), .weight = source.weight});
  std::vector<Mixture::Part> train, validation;
  for (Source& source : sources_) {
    if (config.train.stored_reference) source.log_probs = read_log_probs(source.stream);
    if (config.train.teacher_logits > 0) source.teacher = read_teacher(config, source.stream);
    Part part = config.data.masks() ? packed(config, source) : joined(config, source, shift);
    source.sequences = part.train->sequences_per_epoch();
    train.push_back({std::move(part.train), source.weight});
    if (part.validation) validation.push_back({std::move(part.validation), source.weight});
    if (!tokenizer_) tokenizer_ = source.stream.load_tokenizer();
  }
  train_ = one_of(std::move(train));
  validation_ = one_of(std::move(validation));
  if (config.data.validation.empty() || config.evaluation.every == 0) return;
  const TokenStream& held_out =
      validation_stream_.emplace(open_data(config.data.validation, config.model.vocab_size));
  if (config.train.stored_reference) validation_log_probs_ = read_log_probs(held_out);
  if (config.data.masks())
    validation_ = pack(config, held_out, 0, validation_log_probs_);
  else
    validation_ = load(config, held_out, {0, held_out.size()});
}

std::vector<const LogProbs*> RunData::log_probs() const {
  std::vector<const LogProbs*> found;
  for (const Source& source : sources_)
    if (source.log_probs) found.push_back(&*source.log_probs);
  if (validation_log_probs_) found.push_back(&*validation_log_probs_);
  return found;
}

std::vector<const TeacherLogits*> RunData::teacher_logits() const {
  std::vector<const TeacherLogits*> found;
  for (const Source& source : sources_)
    if (source.teacher) found.push_back(source.teacher.get());
  return found;
}

bool RunData::has_weights() const {
  return std::ranges::any_of(sources_, [](const Source& source) {
    return source.stream.documents() && source.stream.documents()->has_weights();
  });
}

std::vector<fs::path> RunData::paths() const {
  std::vector<fs::path> paths;
  for (const Source& source : sources_) paths.push_back(source.stream.path());
  return paths;
}

DataFingerprint RunData::fingerprint() const {
  DataFingerprint found;
  for (const Source& source : sources_)
    found.train.push_back({.stream = fingerprint_of(source.stream),
                           .range = source.range,
                           .weight = source.weight,
                           .packing = source.packing ? source.packing->checksum() : ""});
  if (validation_stream_) found.validation = fingerprint_of(*validation_stream_);
  return found;
}

std::string RunData::origin(int64_t position, std::optional<int64_t> token) const {
  constexpr size_t kMost = 8;  // pieces that are told
  std::string text;
  size_t told = 0;
  std::vector<SequencePiece> pieces = train_->pieces(position);
  if (token)
    std::erase_if(pieces, [&](const SequencePiece& piece) {
      return *token < piece.begin || *token >= piece.begin + piece.count;
    });
  for (const SequencePiece& piece : pieces) {
    if (told++ == kMost) return text + fmt::format("; and {} more", pieces.size() - kMost);
    const std::string of_document = piece.document ? fmt::format(", document {}", *piece.document) : "",
                      at_line = piece.line ? fmt::format(" (line {})", *piece.line) : "";
    const int64_t first = piece.first_token + (token ? *token - piece.begin : 0);
    text += (told == 1 ? "" : "; ") + piece.file + of_document;
    text += token ? fmt::format(", token {}", first)
                  : fmt::format(", tokens {} to {}{}", first, first + piece.count - 1, at_line);
  }
  return text.empty() ? "padding" : text;
}

std::vector<std::string> RunData::verify() const {
  std::vector<std::string> notices;
  for (const Source& source : sources_) notices.push_back(verify_at_start(source.stream));
  if (validation_stream_) notices.push_back(verify_at_start(*validation_stream_));
  for (const TeacherLogits* teacher : teacher_logits())
    if (!teacher->is_verified())
      notices.push_back(fmt::format("{}, from {}, is too large to be verified at the start",
                                    kTeacherLogitsName, teacher->facts().model));
  std::erase(notices, "");
  return notices;
}

std::vector<std::string> RunData::packing_notices() const {
  std::vector<std::string> notices;
  for (const Source& source : sources_) {
    if (!source.packing) continue;
    const PackingFigures& figures = source.packing->figures();
    const std::string path = source.stream.path().string();
    if (figures.cut > 0)
      notices.push_back(fmt::format(
          "{} of {} documents of {} are longer than a sequence, and are cut: no piece of them sees another",
          figures.cut, figures.documents, path));
    if (source.cut_pairs > 0)
      notices.push_back(fmt::format(
          "{} of {} pairs of {} are longer than a sequence: of each answer the beginning is kept, up to half "
          "of a sequence or what the other one leaves. A larger train.sequence_length keeps more",
          source.cut_pairs, figures.documents, path));
    if (source.pairs && figures.uncounted > 0) {
      notices.push_back(fmt::format(
          "{} pairs of {} are left out: of one answer no token that counts is in its part of a sequence",
          figures.uncounted, path));
      continue;
    }
    if (figures.empty > 0)
      notices.push_back(
          fmt::format("{} documents of {} have one token and are skipped", figures.empty, path));
    if (figures.uncounted > 0)
      notices.push_back(
          fmt::format("{} pieces of documents of {} have no target that counts and are skipped; the first "
                      "{} of {} {}, counted from 0",
                      figures.uncounted, path, figures.uncounted == 1 ? "is" : "are",
                      figures.first_uncounted.size() == 1 ? "document" : "documents",
                      fmt::join(figures.first_uncounted, ", ")));
  }
  return notices;
}

TokenStream open_data(const std::string& name, int64_t vocab_size, const Tokenizer* tokenizer) {
  const fs::path path = name == kBuiltinData ? builtin_corpus() : fs::path(name);
  TokenStream stream = tokenizer ? TokenStream::open(path, *tokenizer) : TokenStream::open(path);
  stream.require_tokens_below(vocab_size);
  return stream;
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

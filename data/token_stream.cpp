#include "data/token_stream.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "data/manifest.h"
#include "data/shard.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// llm.c writes `x_train_*.bin` and `x_val_*.bin` to one folder: reading all of it would train on validation
// data.
void check_not_mixed(const fs::path& folder, const std::vector<fs::path>& shards) {
  const auto has = [](const fs::path& shard, const char* word) {
    return shard.filename().native().find(word) != std::string::npos;
  };
  const auto is_train = [&](const fs::path& shard) { return has(shard, "train"); };
  const auto is_validation = [&](const fs::path& shard) { return has(shard, "val") && !is_train(shard); };
  const auto train = std::ranges::find_if(shards, is_train);
  const auto validation = std::ranges::find_if(shards, is_validation);
  if (train == shards.end() || validation == shards.end()) return;
  fail(
      "the folder {} mixes training and validation shards ({} and {}): name one kind by a pattern, for "
      "example {}",
      folder.string(), train->filename().string(), validation->filename().string(),
      (folder / "*train*.bin").string());
}

int64_t count_of(const auto& stored) {
  return std::visit([](auto tokens) { return std::ssize(tokens); }, stored);
}
size_t bits_of(const auto& stored) {
  return std::visit([](auto tokens) { return 8 * sizeof(tokens[0]); }, stored);
}

}  // namespace

TokenStream TokenStream::open(const fs::path& path) {
  TokenStream stream;
  stream.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const std::string name = path.filename().string();
  if (fs::is_directory(status)) {
    stream.add_shards(path, "*.bin");
    stream.check_against_manifest();
  } else if (status.type() == fs::file_type::not_found) {
    const bool is_pattern = name.find_first_of("*?[") != std::string::npos;
    check(is_pattern, "{} does not exist: expected a token shard (.bin), a folder of shards or a text file",
          path.empty() ? "the path ''" : path.string());
    check(path.extension() == ".bin", "no file is named {}, and a pattern must end in .bin", path.string());
    stream.add_shards(path.has_parent_path() ? path.parent_path() : ".", name);
    stream.add_documents(false);
  } else if (path.extension() == ".bin") {
    stream.add_shard(path);
    stream.add_documents(false);
  } else {
    check(path.extension() != ".jsonl",
          "{} holds JSON lines, which would be read as plain text: turn it into shards first, with "
          "./prepare --input {} --output FOLDER",
          path.string(), path.string());
    stream.add_text(path);
  }
  return stream;
}

TokenStream TokenStream::open(const fs::path& path, const Tokenizer& tokenizer) {
  TokenStream stream = open(path);
  const bool is_text = stream.sources_.size() == 1 && bits_of(stream.sources_[0].tokens) == 8;
  if (is_text && tokenizer.name() != kBytesTokenizer) stream.encode_text(tokenizer);
  return stream;
}

// The text that the stream is becomes its tokens.
void TokenStream::encode_text(const Tokenizer& tokenizer) {
  check(tokenizer.end_of_text() >= 0, "the tokenizer {} has no token that ends texts, to encode {}",
        tokenizer.name(), path_.string());
  Source& source = sources_[0];
  const std::span<const std::byte> bytes = source.file.bytes();
  std::vector<int32_t> ids;
  try {
    ids = tokenizer.encode({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (const ByteWithoutToken& error) {
    fail("{}:{}: {}. ./prepare {} --bytes-without-token skip leaves such bytes out and counts them",
         path_.string(), error.line, error.what(), path_.string());
  }
  const auto append = [&](std::span<const int32_t> more) {
    source.encoded.insert(source.encoded.end(), more.begin(), more.end());
  };
  append(tokenizer.before_text());
  append(ids);
  append(tokenizer.after_text());
  const auto end = static_cast<uint32_t>(tokenizer.end_of_text());
  if (source.encoded.back() != end) source.encoded.push_back(end);
  source.tokens = std::span<const uint32_t>(source.encoded);
  size_ = std::ssize(source.encoded);
  tokenizer_ = tokenizer.name();
}

void TokenStream::add_text(const fs::path& path) {
  MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  check(!bytes.empty(), "the text file {} is empty", path.string());
  const std::span text(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  tokenizer_ = kBytesTokenizer;
  sources_.push_back({.file = std::move(file), .tokens = text, .first_token = size_});
  size_ += std::ssize(text);
}

void TokenStream::add_shard(const fs::path& path) {
  MappedFile file(path);
  const Stored tokens = std::visit([](auto stored) { return Stored(stored); }, shard_tokens(file));
  if (!sources_.empty())
    check(sources_.front().tokens.index() == tokens.index(),
          "the shards {} and {} hold tokens of {} and of {} bits: they were made with different tokenizers; "
          "prepare all of them with one, or name those of one",
          sources_.front().file.path().string(), path.string(), bits_of(sources_.front().tokens),
          bits_of(tokens));
  sources_.push_back({.file = std::move(file), .tokens = tokens, .first_token = size_});
  size_ += count_of(tokens);
}

void TokenStream::add_shards(const fs::path& folder, const std::string& pattern) {
  const std::vector<fs::path> shards = shards_in(folder, pattern);
  check_not_mixed(folder, shards);
  for (const fs::path& shard : shards) add_shard(shard);
}

// `required`: dataset.json says that each shard has an index.
void TokenStream::add_documents(bool required) {
  const auto has_index = [](const Source& source) {
    return fs::exists(document_index_of(source.file.path()));
  };
  if (!required && std::ranges::none_of(sources_, has_index)) return;
  documents_ = std::make_unique<DocumentIndex>();
  for (const Source& source : sources_) documents_->add_shard(source.file.path(), count_of(source.tokens));
}

void TokenStream::check_against_manifest() {
  const std::optional<Manifest> manifest = read_manifest(path_);
  add_documents(manifest && manifest->format == kManifestFormat);
  if (!manifest) return;
  check(manifest->tokens == size_ && manifest->shards == std::ssize(sources_),
        "{} does not agree with the shards beside it: it says {} tokens in {} shards, found {} tokens in {} "
        "shards; copy the folder again or prepare it again with ./prepare",
        (path_ / kManifestName).string(), manifest->tokens, manifest->shards, size_, sources_.size());
  check(bits_of(sources_.front().tokens) >= static_cast<size_t>(bits_for(manifest->vocab_size)),
        "{} does not agree with the shards beside it: a vocabulary of {} tokens needs {} bits a token, found "
        "{}; copy the folder again or prepare it again with ./prepare",
        (path_ / kManifestName).string(), manifest->vocab_size,
        static_cast<int>(bits_for(manifest->vocab_size)), bits_of(sources_.front().tokens));
  if (manifest->format == kManifestFormat)
    check(manifest->documents == documents_->count() &&
              manifest->counted_tokens == documents_->counted_tokens(),
          "{} does not agree with the indices beside it: it says {} documents and {} tokens that count, "
          "found {} and {}; copy the folder again or prepare it again with ./prepare",
          (path_ / kManifestName).string(), manifest->documents, manifest->counted_tokens,
          documents_->count(), documents_->counted_tokens());
  tokenizer_ = manifest->tokenizer;
  tokenizer_ids_ = manifest->vocab_size;
  largest_token_ = manifest->largest_token;
  if (!manifest->tokenizer_from.empty()) end_of_text_ = manifest->end_of_text;
}

std::unique_ptr<Tokenizer> TokenStream::load_tokenizer() const {
  if (tokenizer_.empty()) return nullptr;
  if (tokenizer_ == kBytesTokenizer) return tessera::load_tokenizer(tokenizer_);
  check(sources_.front().encoded.empty(), "{} is a text that was encoded: its tokenizer has been given",
        path_.string());
  const fs::path file = path_ / kTokenizerFile;
  check(fs::exists(file),
        "{} names the tokenizer {}, which is not beside it: copy its {} there, or prepare the dataset "
        "again with ./prepare",
        (path_ / kManifestName).string(), tokenizer_, kTokenizerFile);
  auto tokenizer = tessera::load_tokenizer(file.string(), EndOfText{.id = end_of_text_});
  check(tokenizer->name() == tokenizer_,
        "{} is the tokenizer {}, and {} names {}: copy the folder again or prepare it again with ./prepare",
        file.string(), tokenizer->name(), kManifestName, tokenizer_);
  return tokenizer;
}

void TokenStream::require_tokens_below(int64_t vocab_size) {
  constexpr int64_t kMost = int64_t{1} << 31;  // ids are int32
  check(vocab_size >= 1 && vocab_size <= kMost, "a vocabulary of {} tokens cannot hold {}", vocab_size,
        describe());
  vocab_size_ = vocab_size;
}

void TokenStream::check_largest_token() const {
  check(largest_token_.value_or(0) < vocab_size_,
        "{}: the largest token is {}, but the vocabulary has only {} tokens (0 to {}): {}",
        (path_ / kManifestName).string(), largest_token_.value_or(0), vocab_size_, vocab_size_ - 1, remedy());
}

// What to do about a token that is not in the vocabulary
std::string TokenStream::remedy() const {
  return fmt::format("{}; or, for the weights of a model, prepare the data again with its tokenizer",
                     tokenizer_ids_ ? fmt::format("--set model.vocab_size={} suits the data", *tokenizer_ids_)
                                    : "set model.vocab_size to that of the data's tokenizer");
}

void TokenStream::read(int64_t first, std::span<int32_t> out) const {
  const int64_t count = std::ssize(out);
  check(0 <= first && first <= size_ && count <= size_ - first,
        "cannot read {} tokens from token {} on: {} has {} tokens", count, first, path_.native(), size_);
  // The last source that begins at or before `first`
  auto source = std::ranges::upper_bound(sources_, first, {}, &Source::first_token) - 1;
  for (; !out.empty(); ++source) {
    const int64_t at = first - source->first_token;
    const int64_t held = count_of(source->tokens);
    const std::span<int32_t> part = out.first(static_cast<size_t>(std::min(std::ssize(out), held - at)));
    std::visit([&](auto tokens) { copy_checked(*source, tokens, at, part); }, source->tokens);
    first += std::ssize(part);
    out = out.subspan(part.size());
  }
}

std::vector<SequencePiece> TokenStream::pieces(TokenRange range, int64_t begin) const {
  check(0 <= range.first_token && range.token_count <= size_ - range.first_token,
        "there are no {} tokens from token {} on: {} has {} tokens", range.token_count, range.first_token,
        path_.native(), size_);
  std::vector<SequencePiece> pieces;
  for (int64_t first = range.first_token, left = range.token_count; left > 0;) {
    const auto source = std::ranges::upper_bound(sources_, first, {}, &Source::first_token) - 1;
    const int64_t at = first - source->first_token;
    SequencePiece piece{.begin = begin,
                        .count = std::min(left, count_of(source->tokens) - at),
                        .file = source->file.path().string(),
                        .first_token = at};
    if (documents_) {
      piece.document = documents_->document_of(first);
      const TokenRange document = documents_->document(*piece.document);
      piece.count = std::min(piece.count, document.first_token + document.token_count - first);
    } else if (const auto* text = std::get_if<std::span<const uint8_t>>(&source->tokens)) {
      piece.line = 1 + std::ranges::count(text->first(static_cast<size_t>(at)), '\n');
    }
    first += piece.count, left -= piece.count, begin += piece.count;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

template <class Token>
void TokenStream::copy_checked(const Source& source, std::span<const Token> stored, int64_t at,
                               std::span<int32_t> out) const {
  const auto tokens = stored.subspan(static_cast<size_t>(at), out.size());
  Token largest = 0;  // one comparison per read instead of a branch per token, so that the loop vectorises
  for (size_t i = 0; i < tokens.size(); ++i) {
    out[i] = static_cast<int32_t>(tokens[i]);
    largest = std::max(largest, tokens[i]);
  }
  if (largest < vocab_size_) return;
  const auto bad = std::ranges::find_if(tokens, [&](Token token) { return token >= vocab_size_; });
  fail("{}: token {} of this file is {}, but the vocabulary has only {} tokens (0 to {}): {}",
       source.file.path().string(), at + (bad - tokens.begin()), *bad, vocab_size_, vocab_size_ - 1,
       remedy());
}

std::vector<const MappedFile*> TokenStream::files() const {
  std::vector<const MappedFile*> files;
  for (const Source& source : sources_) files.push_back(&source.file);
  return files;
}

std::string TokenStream::describe() const {
  const size_t bits = bits_of(sources_.front().tokens);
  const std::string kind =
      bits == 8 || !sources_.front().encoded.empty()
          ? "plain text"
          : fmt::format("{} {}{}", sources_.size(), sources_.size() == 1 ? "shard" : "shards",
                        bits == 32 ? " of 32-bit tokens" : "");
  return fmt::format("{}: {} tokens, {}, tokenizer {}", path_.string(), size_, kind,
                     tokenizer_.empty() ? "unknown" : tokenizer_);
}

}  // namespace tessera

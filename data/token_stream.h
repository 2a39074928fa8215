// All tokens of a data set as one read-only sequence with random access.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "data/document_index.h"
#include "data/sequences.h"
#include "data/tokenizers/tokenizer.h"
#include "kernels/base/file.h"

namespace tessera {

// Files are memory-mapped, so opening takes no time and no memory whatever their size, and processes share
// the pages. After open() and require_tokens_below() a stream never changes, so several threads may read it.
// If a file is truncated while the stream is open, the program may end with SIGBUS (see MappedFile).
class TokenStream {
 public:
  // `path` is one of
  //   a shard              tokens.bin                   see shard.h
  //   shards by a pattern  folder/fineweb_train_*.bin   *, ? and [] in the file name; in name order
  //   a folder             fineweb                      its *.bin, in name order, and dataset.json, if any
  //   a text file          any other name               its bytes are the tokens of the tokenizer `bytes`
  // Error: the path does not exist or is not readable; it is a folder or pattern without shards, or with both
  // training and validation shards, or with tokens of both 16 and 32 bits; it is an empty text file, or a
  // .jsonl, which must be prepared first; a shard is not valid; a manifest is not valid or disagrees with the
  // shards; an index of documents is not valid, or only some shards have one.
  static TokenStream open(const std::filesystem::path& path);
  // The same, but a text file is encoded with `tokenizer`, in memory. It becomes one document, with what the
  // tokenizer's template puts around a text and the end of text, as ./prepare writes it. Error: the tokenizer
  // has no token that ends texts.
  static TokenStream open(const std::filesystem::path& path, const Tokenizer& tokenizer);

  int64_t size() const { return size_; }  // tokens; at least 1

  // Fills `out` with the tokens first, first + 1, ...; may span shards.
  // Error: a range outside the stream; a token at or above the limit set by require_tokens_below.
  void read(int64_t first, std::span<int32_t> out) const;

  // The pieces in which these tokens lie: they are cut where a file or a document ends. In the sequence they
  // stand from token `begin` on. Error: the range is outside the stream.
  std::vector<SequencePiece> pieces(TokenRange range, int64_t begin) const;

  // From now on every token that is read must be below `vocab_size`: a larger one would make the model read
  // past its embedding table. This is checked at each read, since a check at the start would read the whole
  // data set. Error: vocab_size < 1, or above 2^31.
  void require_tokens_below(int64_t vocab_size);
  // Error: dataset.json says that some token is not below that limit. Reads no token
  void check_largest_token() const;
  bool knows_largest_token() const { return largest_token_.has_value(); }

  // The name of the tokenizer that made the tokens; "" when unknown (shards without a dataset.json).
  const std::string& tokenizer() const { return tokenizer_; }
  // That tokenizer, from the tokenizer.json beside the shards; null when unknown. Error: that file is missing
  // or not valid, or is another tokenizer than dataset.json names.
  std::unique_ptr<Tokenizer> load_tokenizer() const;

  // Where documents begin and which tokens count as targets; null: the shards do not say. The same object for
  // the life of the stream, also when it is moved.
  const DocumentIndex* documents() const { return documents_.get(); }

  const std::filesystem::path& path() const { return path_; }  // as given to open()
  std::vector<const MappedFile*> files() const;                // in the order of their tokens

  std::string describe() const;  // one line for the user

 private:
  // In the file: bytes of a text, or the tokens of a shard
  using Stored = std::variant<std::span<const uint8_t>, std::span<const uint16_t>, std::span<const uint32_t>>;
  struct Source {
    MappedFile file;
    Stored tokens;
    int64_t first_token;                 // its place in the stream
    std::vector<uint32_t> encoded = {};  // the tokens of a text that was encoded; `tokens` points to them
  };

  TokenStream() = default;
  void add_text(const std::filesystem::path& path);
  void encode_text(const Tokenizer& tokenizer);
  void add_shard(const std::filesystem::path& path);
  void add_shards(const std::filesystem::path& folder, const std::string& pattern);
  void check_against_manifest();
  void add_documents(bool required);
  std::string remedy() const;
  template <class Token>
  void copy_checked(const Source& source, std::span<const Token> stored, int64_t at,
                    std::span<int32_t> out) const;

  std::filesystem::path path_;   // as given to open()
  std::vector<Source> sources_;  // ordered by first_token
  int64_t size_ = 0;
  int64_t vocab_size_ = int64_t{std::numeric_limits<int32_t>::max()} + 1;  // ids are int32
  std::unique_ptr<DocumentIndex> documents_;                               // null: the shards have none
  std::string tokenizer_;
  int64_t end_of_text_ = -1;  // of a tokenizer with files; else -1
  std::optional<int64_t> tokenizer_ids_, largest_token_;  // of dataset.json
};

}  // namespace tessera

// Where documents begin, and which of their tokens do not count as targets: a file beside each shard,
// train_000000.documents beside train_000000.bin. Little-endian:
//   bytes 0 to 7    the letters "tessdocs"
//   8 to 11         uint32  version 1
//   12 to 15        uint32  a sum. 1: documents are pairs, a chosen one and the rejected one that follows; 2:
//                           they have labels; 4: tokens have weights
//   16 to 23        int64   the shard's first token, counted in the whole data set
//   24 to 31        int64   T, the tokens of the shard
//   32 to 39        int64   N, the documents that begin in the shard
//   40 to 47        int64   R, runs of tokens that do not count as targets
//   then            uint32 [N]     first tokens of documents, ascending
//                   uint32 [R, 2]  first token and length of each run, ascending; between two is a token
//                   uint32 [N]     with labels: the DocumentLabel of each document
//                   uint32         with weights: W, runs of tokens whose loss has another weight than 1
//                   uint32 [W, 3]  first token and length of each, ascending, and its weight, a float above 0
// Tokens are counted from the beginning of the shard. A document goes on until the next one begins, even if
// that
// is in the following shard; a run ends with its shard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/token_range.h"
#include "kernels/base/file.h"
#include "kernels/base/file_checksums.h"

namespace tessera {

// Whether an answer is a good one
enum class DocumentLabel : uint32_t { kUndesirable = 0, kDesirable = 1, kNone = 2 };

// train_000000.documents, beside train_000000.bin
std::filesystem::path document_index_of(const std::filesystem::path& shard);

// The documents of a stream of shards, in order and without gaps. Files are memory-mapped. Several threads
// may read it.
class DocumentIndex {
 public:
  // Adds the index of `shard`, which has `tokens` tokens; shards are added in the order of the stream. If a
  // shard does not follow the one before it in its data set, a document begins with it. Reads the whole file.
  // Error, naming the file: it is missing, no index, of another version, truncated or longer, or made for a
  // shard of another size; first tokens or runs do not ascend or lie outside the shard; pairs stand beside
  // other documents, or a shard has none though those before it do.
  void add_shard(const std::filesystem::path& shard, int64_t tokens);

  int64_t count() const { return count_; }                         // the number of documents
  bool has_pairs() const { return pairs_; }                        // all documents are in pairs
  bool has_labels() const { return count_ > 0 && labels_; }        // some document has a label
  bool has_weights() const { return weights_; }                    // some token has a weight other than 1
  DocumentLabel label(int64_t i) const;                            // of document i. Error: as document()
  int64_t tokens() const { return tokens_; }                       // of all documents
  int64_t document_of(int64_t token) const;                        // which has it. Error: outside the stream
  TokenRange document(int64_t i) const;                            // Error: i < 0, i >= count()
  int64_t counted_tokens() const { return tokens_ - uncounted_; }  // those that count as targets

  // The number of successive tokens, beginning with this one, that do not count as targets
  int64_t uncounted_from(int64_t token) const;
  // Sets targets[i] = kNoTarget for every stream token first + i that does not count as a target.
  // Error: a range outside the stream.
  void drop_uncounted(int64_t first, std::span<int32_t> targets) const;
  // Sets weights[i] to the weight of the loss of stream token first + i. Error: the range is outside the
  // stream.
  void take_weights(int64_t first, std::span<float> weights) const;

  std::vector<const MappedFile*> files() const;

 private:
  struct Run {
    uint32_t first, count;
  };
  struct Weight {
    uint32_t first, count;
    float weight;
  };
  struct Part {  // the index of one shard
    MappedFile file;
    int64_t first_token;  // in the stream
    int64_t tokens;
    int64_t follows;         // the number in the data set of the token after its last one
    int64_t first_document;  // the first document that begins in it
    bool begins;             // a document begins with its first token, although `starts` does not say so
    std::span<const uint32_t> starts;
    std::span<const Run> runs;
    std::span<const uint32_t> labels;  // of the documents in `starts`; empty: they have none
    std::span<const Weight> weights;
  };
  // Calls on_run(run, begin, end) for each run of a list that contains some of the stream tokens `first` to
  // last - 1. begin and end are the first of these tokens and the one after the last, counted from `first`.
  template <class T, class OnRun>
  void visit_runs(std::span<const T> Part::*list, int64_t first, int64_t last, const OnRun& on_run) const;
  int64_t start_of(int64_t i) const;

  std::vector<Part> parts_;
  int64_t count_ = 0, tokens_ = 0, uncounted_ = 0;
  bool pairs_ = false, labels_ = false, weights_ = false;
};

// Tokens whose loss has this weight
struct WeightedTokens {
  int64_t first_token, token_count;
  double weight;
  bool operator==(const WeightedTokens&) const = default;
};

// The marks of some consecutive tokens. Tokens are counted from the first of them.
struct DocumentMarks {
  std::vector<int64_t> starts;             // first tokens of documents, ascending
  std::vector<TokenRange> uncounted;       // ascending, without overlaps
  std::vector<DocumentLabel> labels = {};  // of the documents in `starts`; empty: none has one
  // Ascending, without overlaps: tokens that count and have a weight above 0 other than 1
  std::vector<WeightedTokens> weights = {};
};

struct DocumentIndexWriterOptions {
  std::filesystem::path folder;
  std::string prefix = "train";  // the same as that of the ShardWriter beside it
  int64_t tokens_per_shard = 0;
};

// Writes the index of each shard that a ShardWriter with the same options writes. Errors name the file and
// the system's reason.
class DocumentIndexWriter {
 public:
  explicit DocumentIndexWriter(DocumentIndexWriterOptions options) : options_(std::move(options)) {}

  // `pairs`: whether the documents are pairs; then all others of the data set must be as well
  void append(int64_t tokens, const DocumentMarks& marks, bool pairs = false);
  void finish();  // completes the last file; required

  int64_t uncounted_tokens() const { return uncounted_; }
  const FileChecksums& checksums() const { return checksums_; }  // of the complete files

 private:
  void add_run(int64_t first, int64_t count);
  void add_weight(int64_t first, int64_t count, float weight);
  void write_shard();

  DocumentIndexWriterOptions options_;
  std::vector<uint32_t> starts_, runs_, labels_, weights_;  // of the current shard
  int64_t shards_ = 0, shard_tokens_ = 0, uncounted_ = 0;
  bool pairs_ = false;
  FileChecksums checksums_;
};

}  // namespace tessera

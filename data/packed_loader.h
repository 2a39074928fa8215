// Sequences of whole documents, from the part of a stream that a range of its documents is.
#pragma once

#include <cstdint>
#include <vector>

#include "data/document_index.h"
#include "data/loader.h"
#include "data/log_probs.h"
#include "data/packing.h"
#include "data/sequences.h"
#include "data/token_stream.h"

namespace tessera {

class TeacherLogits;  // data/teacher_logits.h

// What a stream says of its documents. Error: it does not say where they begin; the message has the command
// that prepares the data again.
const DocumentIndex& documents_of(const TokenStream& stream);

struct PackedLoaderOptions {
  const TokenStream* stream = nullptr;  // outlives the loader; has documents
  int64_t first_document = 0;           // the part of the stream to use
  int64_t document_count = 0;
  int64_t sequence_length = 0;  // T, tokens
  uint64_t seed = 0;
  bool shuffle = true;   // false: every epoch has the order of the first
  bool answers = false;  // documents are answers with a label, each packed with a mismatched document
  // What is stored beside the stream; they outlive the loader; null: sequences have none
  const LogProbs* log_probs = nullptr;
  const TeacherLogits* teacher = nullptr;
};

// The sequences are those of Packing, the same in every epoch. They come in a random order, since that of
// Packing is by length: another one in each epoch, or the same if `shuffle` is false. The rest of a sequence
// is padding: tokens 0 without targets, a document of its own. Targets that do not count are kNoTarget.
//
// A pair of a chosen and a rejected document is packed as one: the second follows the first in its sequence.
// Where a pair has more inputs than a sequence, each side keeps its beginning: half a sequence, or what the
// other side leaves. A pair is left out if one of its sides then has no target that counts.
//
// With `answers` a pair is a document and its mismatched one: the prompt of the document, which is its tokens
// before the first that counts, and the answer of the document before it in the stream; the first document
// takes the answer of the last one. Such pairs are cut in the same way.
class PackedLoader : public SequenceSource {
 public:
  // Error: there is no stream; it has no documents (documents_of), or fewer than the range; with `answers` a
  // document has no label; a stored log-probability is of another number of tokens than the document has in
  // sequences of this length; what Packing refuses.
  explicit PackedLoader(const PackedLoaderOptions& options);

  int64_t sequences_per_epoch() const override { return packing_.sequences(); }
  void fetch_at(std::span<const int64_t> positions, Sequences& out) const override;
  std::vector<int64_t> document_lengths(int64_t position) const override;
  std::vector<SequencePiece> pieces(int64_t position) const override;

  // What a sequence is made of, in order, without padding
  struct PackedDocument {
    DocumentKind kind;
    int64_t document;      // of the stream
    int64_t begin, count;  // tokens of the sequence
    int64_t first_token;   // of the stream
  };
  std::vector<PackedDocument> documents_at(int64_t position) const;

  TokenRange range() const;  // of the documents
  const Packing& packing() const { return packing_; }
  bool has_pairs() const { return documents_.has_pairs() || options_.answers; }
  int64_t cut_pairs() const { return cut_pairs_; }  // whose sides are not whole

 private:
  struct Row;
  // A part of a document
  struct Side {
    DocumentKind kind;
    int64_t document;      // of the stream
    int64_t first, count;  // the first token in the stream, inputs
    // Of a mismatched document: the tokens of its prompt, and the first token of its answer in the stream
    int64_t prompt = 0, answer = 0;
  };
  // A mismatched document in the stream
  struct Mismatched {
    int64_t prompt, answer, inputs;
  };
  // What is packed as one, counted from the first of the range: a document, or a pair
  int64_t packed() const { return options_.document_count / (documents_.has_pairs() ? 2 : 1); }
  Mismatched mismatched(int64_t document) const;
  int64_t prompt_of(int64_t document) const;  // its tokens before the first that counts
  void read(const Side& side, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  int64_t inputs(int64_t number) const;
  std::vector<Side> sides(const Packing::Piece& piece) const;
  int64_t inputs_of_document(int64_t document) const;  // in the stream
  Packing pack();
  void check_log_probs(const Side& side, int64_t counted) const;
  int64_t sequence_at(int64_t position) const;  // of the packing
  void fill(int64_t sequence, const Row& row) const;

  PackedLoaderOptions options_;
  const DocumentIndex& documents_;
  int64_t cut_pairs_ = 0;
  Packing packing_;
  SequenceOrder order_;
};

// The number of documents before those that are held out: the end of the stream that holds `fraction` of its
// tokens, to the nearest document, at least one and not all. Error: fewer than two documents.
int64_t documents_to_train_on(const TokenStream& stream, double fraction);

}  // namespace tessera

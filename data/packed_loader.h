// Makes sequences of whole documents, from a range of the documents of a stream.
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

// The documents of a stream. Error: the stream does not say where documents begin; the message has the
// command that prepares the data again.
const DocumentIndex& documents_of(const TokenStream& stream);

struct PackedLoaderOptions {
  const TokenStream* stream = nullptr;  // outlives the loader; has documents
  int64_t first_document = 0;           // the part of the stream to use
  int64_t document_count = 0;
  int64_t sequence_length = 0;  // T, tokens
  uint64_t seed = 0;
  bool shuffle = true;   // false: every epoch has the order of the first one
  bool answers = false;  // documents are answers with a label, each packed with its mismatched document
  // Numbers that are stored beside the stream. They outlive the loader. Null: sequences have none
  const LogProbs* log_probs = nullptr;
  const TeacherLogits* teacher = nullptr;
};

// Packing makes the sequences, which are the same in every epoch. Packing orders them by length, so here
// they come in a random order: another one in each epoch, or always the same if `shuffle` is false. The rest
// of a sequence is padding: tokens 0 without targets, as a document of its own. Targets that do not count are
// kNoTarget.
//
// A pair of a chosen and a rejected document is packed as one: the second follows the first in its sequence.
// If a pair has more inputs than a sequence, each side keeps its beginning: half a sequence, or more if the
// other side needs less. The pair is left out if one of its sides then has no target that counts.
//
// With `answers` a pair is a document and its mismatched document. The mismatched document has the prompt of
// the document, which is its tokens before the first that counts, and the answer of the document before it in
// the stream; the first document takes the answer of the last one. Such pairs are cut in the same way.
class PackedLoader : public SequenceSource {
 public:
  // Error: there is no stream; it has no documents (documents_of), or fewer than the range; with `answers`, a
  // document has no label; a stored log-probability was summed over another number of tokens than the
  // document has in sequences of this length; Packing refuses the documents.
  explicit PackedLoader(const PackedLoaderOptions& options);

  int64_t sequences_per_epoch() const override { return packing_.sequences(); }
  void fetch_at(std::span<const int64_t> positions, Sequences& out) const override;
  std::vector<int64_t> document_lengths(int64_t position) const override;
  std::vector<SequencePiece> pieces(int64_t position) const override;

  // A document of a sequence, or a part of one. Padding is not listed
  struct PackedDocument {
    DocumentKind kind;
    int64_t document;      // its number in the stream
    int64_t begin, count;  // its place in the sequence, in tokens
    int64_t first_token;   // its first token in the stream
  };
  std::vector<PackedDocument> documents_at(int64_t position) const;

  TokenRange range() const;  // the tokens of the documents
  const Packing& packing() const { return packing_; }
  bool has_pairs() const { return documents_.has_pairs() || options_.answers; }
  int64_t cut_pairs() const { return cut_pairs_; }  // the pairs of which a side is cut

 private:
  struct Row;
  // A part of a document
  struct Side {
    DocumentKind kind;
    int64_t document;      // of the stream
    int64_t first, count;  // the first token in the stream, inputs
    // For a mismatched document: the number of tokens of its prompt, and where in the stream its answer
    // begins
    int64_t prompt = 0, answer = 0;
  };
  // A mismatched document in the stream
  struct Mismatched {
    int64_t prompt, answer, inputs;
  };
  // The number of units that are packed as one: documents, or pairs. They are counted from the first of the
  // range
  int64_t packed() const { return options_.document_count / (documents_.has_pairs() ? 2 : 1); }
  Mismatched mismatched(int64_t document) const;
  int64_t prompt_of(int64_t document) const;  // its tokens before the first that counts
  void read(const Side& side, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  int64_t inputs(int64_t number) const;
  std::vector<Side> sides(const Packing::Piece& piece) const;
  int64_t inputs_of_document(int64_t document) const;  // in the stream
  Packing pack();
  void check_log_probs(const Side& side, int64_t counted) const;
  int64_t sequence_at(int64_t position) const;  // the number of a sequence in the packing
  void fill(int64_t sequence, const Row& row) const;

  PackedLoaderOptions options_;
  const DocumentIndex& documents_;
  int64_t cut_pairs_ = 0;
  Packing packing_;
  SequenceOrder order_;
};

// The number of documents to train on, if the end of the stream is held out. The held-out documents have
// `fraction` of the tokens, to the nearest document: at least one document and not all. Error: there are
// fewer than two documents.
int64_t documents_to_train_on(const TokenStream& stream, double fraction);

}  // namespace tessera

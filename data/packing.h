// Packing: whole documents side by side in sequences of one length.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct PackingOptions {
  int64_t documents = 0;                        // below 2^32
  std::function<int64_t(int64_t)> inputs = {};  // of a document: its number of tokens - 1; at least 0
  int64_t sequence_length = 0;                  // T, the inputs of a sequence
  uint64_t seed = 0;                            // for the order of documents of equal length
  // Whether any target of the inputs [first, first + count) of a document counts; null: all do
  std::function<bool(int64_t document, int64_t first, int64_t count)> counts = {};
};

// What became of the documents
struct PackingFigures {
  int64_t documents = 0;                      // documents in the sequences, whole or in pieces
  int64_t cut = 0;                            // documents that were cut, because they are longer than a
                                              // sequence
  int64_t empty = 0;                          // documents that were left out: one token, which is no input
  int64_t uncounted = 0;                      // pieces that were left out, because none of their targets
                                              // counts
  std::vector<int64_t> first_uncounted = {};  // the first documents of such pieces, at most 3
  int64_t inputs = 0;
  int64_t sequences = 0;
  double padding = 0;  // the share of the sequences' tokens that are padding
};

// A document of n tokens t_0 .. t_{n-1} has the inputs t_0 .. t_{n-2} and the targets t_1 .. t_{n-1}: its
// last token, end-of-text, is only a target. A document of more than T inputs is cut into pieces of T inputs
// and a rest. For attention and for positions each piece is a document of its own. No pair of an input and
// its target is lost.
//
// The pieces are packed by best fit decreasing: the longest first, each into the fullest sequence that still
// has room. A bitmap over the room that is left in sequences, 0 to T, finds that sequence: O(n) operations on
// words after a counting sort. Memory: 4 bytes a document and 4 a sequence, which stay, and 12 more a
// document while packing. Best fit decreasing for documents in O(n log T): Ding et al., "Fewer Truncations
// Improve Language Modeling", 2024, arXiv 2404.10830. There are at most 11/9 of the fewest possible
// sequences, plus 4 (Johnson, 1973). The packing depends only on the options.
class Packing {
 public:
  struct Piece {
    int64_t document = 0;
    int64_t first = 0;  // the number of its first input in the document
    int64_t count = 0;  // inputs, 1 to T
    bool operator==(const Piece&) const = default;
  };

  // Error: T < 1, too many documents; no piece at all.
  explicit Packing(const PackingOptions& options);

  int64_t sequences() const { return figures_.sequences; }
  // The pieces of sequence i, 0 to sequences() - 1, from its beginning on. `inputs`: as in the options
  template <class Inputs, class Visit>
  void visit(int64_t i, const Inputs& inputs, Visit&& visit) const;
  const PackingFigures& figures() const { return figures_; }
  // A checksum of every length and of all sequences: equal packings have equal checksums.
  std::string checksum() const { return checksum_; }

 private:
  using Id = uint32_t;  // of a document, a piece or a sequence
  struct Full {         // a piece of T inputs, which is a sequence
    Id document, piece;
  };
  class Rooms;

  std::vector<Id> cut(const PackingOptions& options);
  bool keep(const PackingOptions& options, const Piece& piece);
  void best_fit(const PackingOptions& options, const std::vector<Id>& rests);
  void sum_up(const PackingOptions& options);

  int64_t T_;
  std::vector<Full> full_;
  std::vector<Id> documents_;  // of the rests, sequence by sequence
  std::vector<Id> begins_;     // of each sequence in documents_, and their end
  PackingFigures figures_;
  std::string checksum_;
};

template <class Inputs, class Visit>
void Packing::visit(int64_t i, const Inputs& inputs, Visit&& visit) const {
  if (i < std::ssize(full_)) {
    const Full& full = full_[static_cast<size_t>(i)];
    return visit(Piece{full.document, full.piece * T_, T_});
  }
  const auto sequence = static_cast<size_t>(i - std::ssize(full_));
  for (size_t at = begins_[sequence]; at < begins_[sequence + 1]; ++at) {
    const int64_t document = documents_[at], count = inputs(document);
    visit(Piece{document, count - count % T_, count % T_});
  }
}

}  // namespace tessera

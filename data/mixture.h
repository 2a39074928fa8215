// Several sources of sequences as one source, each with its share.
#pragma once

#include <memory>
#include <vector>

#include "data/sequences.h"

namespace tessera {

// Alternates between the sequences of several sources, spread evenly by their weights. Sequences come in
// blocks of at most 10,000; a block has a whole number of sequences of each source, and all blocks have the
// same pattern. A block is as small as the shares allow; if no such block has exact shares, they are rounded
// to 10,000ths. Within a block, the sequences of all sources are ordered by (2 k + 1) / (2 n), for the k-th
// of a source's n sequences: this is Webster's method of apportionment, which keeps every beginning of a
// block near to the shares. The source of a position, and the position in that source, are found in O(1).
//
// An epoch has as many sequences as all sources together. If the share of a source is larger than its part of
// them, its sequences come more than once in an epoch; if it is smaller, not all of them come.
class Mixture : public SequenceSource {
 public:
  struct Part {
    std::unique_ptr<SequenceSource> source;
    double weight = 1;  // above 0; the share is the weight over the sum of all weights
  };
  // Error: no part, a weight that is not positive and finite, a share below one of 10,000 sequences.
  explicit Mixture(std::vector<Part> parts);

  int64_t sequences_per_epoch() const override { return sequences_per_epoch_; }
  void fetch_at(std::span<const int64_t> positions, Sequences& out) const override;
  std::vector<int64_t> document_lengths(int64_t position) const override;
  std::vector<SequencePiece> pieces(int64_t position) const override;

  struct Place {
    int64_t part = 0;
    int64_t position = 0;  // in that part
    bool operator==(const Place&) const = default;
  };
  Place place(int64_t position) const;  // Error: position < 0

 private:
  std::vector<Part> parts_;
  std::vector<int64_t> counts_;  // of each part in a block
  std::vector<Place> block_;
  int64_t sequences_per_epoch_ = 0;
};

}  // namespace tessera

// Several sources of sequences as one, each with its share.
#pragma once

#include <memory>
#include <vector>

#include "data/sequences.h"

namespace tessera {

// The sequences of several sources in turn, spread evenly by their weights: a block of sequences, at most
// 10,000, has a whole number of each source, and the blocks are alike. The block is the smallest in which the
// shares are exact; if none is, they are rounded to 10,000ths. Within a block the k-th sequence of a source
// with n stands at the rank of (2 k + 1) / (2 n): Webster's method of apportionment, which keeps every
// beginning of a block near to the shares. The source of a position, and the position in that source, are
// found in O(1).
//
// An epoch is as many sequences as the sources have together: a source whose weight is more than its part of
// them comes more than once in it, another one not completely.
class Mixture : public SequenceSource {
 public:
  struct Part {
    std::unique_ptr<SequenceSource> source;
    double weight = 1;  // above 0; its share is that of the sum
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
  double share(int64_t part) const;     // of the sequences

 private:
  std::vector<Part> parts_;
  std::vector<int64_t> counts_;  // of each part in a block
  std::vector<Place> block_;
  int64_t sequences_per_epoch_ = 0;
};

}  // namespace tessera

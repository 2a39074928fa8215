// Makes training sequences from a stream of tokens, without state: the sequence at a position depends only on
// the options. So a run resumes from a position, and each rank fetches its own positions.
#pragma once

#include <cstdint>
#include <span>

#include "data/sequences.h"
#include "data/token_range.h"
#include "data/token_stream.h"

namespace tessera {

// The order in which the windows 0 to n - 1 are visited, epoch after epoch. With `shuffle`, each epoch has
// another pseudo-random permutation, made from the seed; each position of it is computed in O(1) time and
// memory. Without it, each epoch has the order 0, 1, ..., n - 1. The order depends only on n and the seed,
// not on a library or a machine, so runs are reproducible.
class SequenceOrder {
 public:
  SequenceOrder(int64_t n, uint64_t seed, bool shuffle);  // Error: n < 1
  int64_t at(int64_t position) const;                     // epoch = position / n. Error: position < 0

 private:
  uint64_t permute(uint64_t index, uint64_t epoch_key) const;

  int64_t n_;
  uint64_t seed_;
  bool shuffle_;
  int half_bits_;  // permute works on numbers of 2 * half_bits_ bits
};

struct LoaderOptions {
  const TokenStream* stream = nullptr;  // outlives the loader
  int64_t first_token = 0;              // the part of the stream to use
  int64_t token_count = 0;
  int64_t sequence_length = 0;  // T, tokens
  uint64_t seed = 0;
  bool shuffle = true;  // false for evaluations
  bool shift = false;   // whether every epoch is cut at another offset; false for evaluations
};

// Splits a range of N tokens into n = (N - 1) / T windows. Window i begins at token i*T + offset(epoch). It
// has T inputs, and as targets the same tokens shifted by one.
//
// Without `shift` the offset is 0. With it, the range is a ring: its first token follows its last one. In
// both cases an epoch has every token once as an input, except the N - n*T tokens (1 to T) between its last
// window and its first. Without `shift` these are the last tokens of the range; with it they differ from
// epoch to epoch.
//
// A ring is used because n, and so the meaning of a position, is then the same in every epoch, and even a
// range of one window can be shifted. Without the ring, most offsets would leave out one window more. The
// price is that in some epochs one window joins the end of the range to its beginning. The target at that
// place is false, as in any window that joins two documents.
class Loader : public SequenceSource {
 public:
  // Error: no stream, T < 1, a range outside the stream, a range too short for one window.
  explicit Loader(const LoaderOptions& options);

  int64_t sequences_per_epoch() const override { return sequences_per_epoch_; }
  TokenRange range() const { return {options_.first_token, options_.token_count}; }

  // The offset of an epoch: its first window begins 0 to T - 1 tokens after the beginning of the range. It
  // depends only on T, the seed and the epoch. Epoch 0 has the offset 0, so it is the same with and without
  // `shift`. T epochs, counted from a multiple of T on, have all T offsets in random order. Error: epoch < 0
  int64_t offset(int64_t epoch) const;

  // Within an epoch every window occurs exactly once. Targets that do not count are kNoTarget.
  void fetch_at(std::span<const int64_t> positions, Sequences& out) const override;
  std::vector<int64_t> document_lengths(int64_t) const override { return {options_.sequence_length}; }
  std::vector<SequencePiece> pieces(int64_t position) const override;

 private:
  int64_t first_of(int64_t position) const;  // the first token of a window, counted in the range
  template <class Read>
  void on_ring(int64_t first, std::span<int32_t> out, const Read& read) const;

  LoaderOptions options_;
  int64_t sequences_per_epoch_;
  SequenceOrder order_;
  SequenceOrder offsets_;  // of 0 .. T - 1
};

struct TrainValidationSplit {
  TokenRange train, validation;
};

struct SplitOptions {
  int64_t token_count = 0;         // of the whole stream
  double validation_fraction = 0;  // between 0 and 1, both excluded
  int64_t sequence_length = 0;     // T: both parts must hold at least one window
};

// Holds out the last `validation_fraction` of the tokens (rounded to the nearest token), so that the two
// parts do not overlap. Error: a fraction outside (0, 1), or a part that is too short for one window.
TrainValidationSplit split_train_validation(const SplitOptions& options);
bool can_split(const SplitOptions& options);  // both parts are long enough

}  // namespace tessera

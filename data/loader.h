// From a stream of tokens to training sequences, without state: the sequence at a position depends on the
// options alone. So a run resumes from a position, and each rank fetches its own positions.
#pragma once

#include <cstdint>
#include <span>

#include "data/token_stream.h"

namespace tessera {

// The order in which the windows 0 .. n - 1 are visited, epoch after epoch. Shuffled: every epoch is another
// seeded pseudo-random permutation, computed for one position in O(1) time and memory. Otherwise 0, 1, ...,
// n - 1 in each epoch. The order depends on (n, seed) only, not on a library or a machine, so runs are
// reproducible.
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
  bool shuffle = true;  // false for evaluation
};

struct TokenRange {
  int64_t first_token = 0;
  int64_t token_count = 0;
};

// Splits a range of tokens into windows of T tokens. Window i has the tokens i*T to i*T + T: T inputs, and
// the same shifted by one as targets. There are (token_count - 1) / T windows; the tokens after the last one
// are never used.
class Loader {
 public:
  // Error: no stream, T < 1, a range outside the stream, a range too short for one window.
  explicit Loader(const LoaderOptions& options);

  int64_t sequences_per_epoch() const { return sequences_per_epoch_; }
  TokenRange range() const { return {options_.first_token, options_.token_count}; }

  // Fills tokens and targets, [count, T] each, with the sequences at positions position .. position + count
  // - 1. Positions continue over epochs; within an epoch every window occurs exactly once. Safe to call from
  // several threads. Error: position < 0, spans of another size than count * T, and what
  // TokenStream::read throws.
  void fetch(int64_t position, int64_t count, std::span<int32_t> tokens, std::span<int32_t> targets) const;

 private:
  LoaderOptions options_;
  int64_t sequences_per_epoch_;
  SequenceOrder order_;
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

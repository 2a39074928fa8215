// How the ranks of a context divide the tokens of a sequence among them (parallel.context). The division
// depends only on the sequence's length and documents, so every rank computes the same.
//
// A sequence is cut into blocks of consecutive tokens. Each rank gets the same number of blocks, so that
// linear layers have equally many rows on all ranks. Among such divisions this one gives the ranks about
// equal work in attention. The work of a block of tokens is the number of pairs of one of its queries and a
// key that the query sees, summed over the blocks of the model. The blocks of tokens are assigned by falling
// work, each to the rank with the least work that has room (longest processing time first: Graham, 1969). No
// length has to be divisible: a rank with fewer tokens has padding at the end of its rows. Padding sees
// nothing and has no target.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "data/sequences.h"
#include "model/model.h"

namespace tessera {

// T: the rows that each of `ranks` has of a sequence of `all_tokens` tokens, padding included
int64_t dealt_tokens(int64_t all_tokens, int64_t ranks);

inline constexpr int32_t kNoPlace = -1;
// For each rank, its T rows: the places of their tokens in the sequence, in ascending order; rows of padding,
// at the end, have kNoPlace. [S, T]. `documents`: [all_tokens, 2] as in Sequences; empty: the sequence is one
// document. `windows`: how many blocks of the model have which window, as Windows::counts() returns it.
std::vector<int32_t> deal_tokens(std::span<const int32_t> documents, int64_t all_tokens, int64_t ranks,
                                 std::span<const Windows::Run> windows);
inline const std::vector<Windows::Run> kNoWindows{Windows::Run{}};

// The batches of a rank
struct DealtShape {
  int64_t ranks = 1, rank = 0;
  int64_t batch;                                   // B: the number of sequences
  int64_t all_tokens;                              // tokens of each sequence, on all ranks together
  std::vector<Windows::Run> windows = kNoWindows;  // see deal_tokens()

  int64_t tokens() const { return dealt_tokens(all_tokens, ranks); }  // T
  int64_t numbers() const;                                            // int32 values in the tables of a batch
  // Views of the tables that deal() wrote: int32 [numbers()], on the device
  void set_tables(const Tensor& numbers, Batch& batch_of_rank) const;
};

// A rank's part of some sequences, for batches one after another
struct Dealt {
  std::vector<int32_t> tokens, targets;  // [sequences, T]; padding has 0 and kNoTarget
  std::vector<int32_t> numbers;          // [batches, numbers()]: see Batch
  std::vector<int64_t> from;             // [sequences, T]: the index of each token in the sequences' tokens;
                                         // -1: padding
};
// Adds a batch to `out`, whose sequences are `sequences`. Documents must have been checked: see token_ids.h.
void deal_batch(const DealtShape& shape, const SequencesView& sequences, Dealt& out);

// The rank's part of numbers of all sequences of a step, `each` for a token; 0 for padding
template <class T>
std::vector<T> dealt_part(const Dealt& own, int64_t micro_steps, std::span<const T> of_all, size_t each) {
  const auto of_micro_step = [&](size_t all) { return all / static_cast<size_t>(micro_steps); };
  const size_t rows = of_micro_step(own.from.size()), numbers = of_micro_step(of_all.size());
  std::vector<T> part(own.from.size() * each);
  for (size_t i = 0; i < own.from.size(); ++i) {
    if (own.from[i] < 0) continue;
    const auto from = of_all.subspan(i / rows * numbers + static_cast<size_t>(own.from[i]) * each, each);
    std::ranges::copy(from, part.begin() + static_cast<std::ptrdiff_t>(i * each));
  }
  return part;
}

}  // namespace tessera

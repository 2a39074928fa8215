// How the ranks of a context share the tokens of a sequence (parallel.context), from its length and
// documents alone: every rank computes the same.
//
// A sequence is cut into blocks of tokens that follow one another. Each rank gets as many blocks, so that
// linear layers have as many rows at each; and of all ways about the one with equal work in attention. The
// work of a block of tokens is its pairs of a query and a key that it sees, of all blocks of the model. They
// are dealt by falling work, each to the rank with the least work that has room (longest processing time
// first: Graham, 1969). Nothing has to be divisible: what is missing to equal numbers is padding at the end
// of a rank's rows, which sees nothing and has no target.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/sequences.h"
#include "model/model.h"

namespace tessera {

// T: the rows of each of `ranks` for a sequence of so many tokens, padding included
int64_t dealt_tokens(int64_t all_tokens, int64_t ranks);

inline constexpr int32_t kNoPlace = -1;
// For each rank its T rows: the places of their tokens in the sequence, rising; at the end kNoPlace. [S, T].
// `documents`: [all_tokens, 2] as in Sequences; empty: the sequence is one document. `windows`: how many
// blocks of the model have which window, as of Windows::counts().
std::vector<int32_t> deal_tokens(std::span<const int32_t> documents, int64_t all_tokens, int64_t ranks,
                                 std::span<const Windows::Run> windows);
inline const std::vector<Windows::Run> kNoWindows{Windows::Run{}};

// The batches of a rank
struct DealtShape {
  int64_t ranks = 1, rank = 0;
  int64_t batch;                                   // B: sequences
  int64_t all_tokens;                              // of each
  std::vector<Windows::Run> windows = kNoWindows;  // see deal_tokens()

  int64_t tokens() const { return dealt_tokens(all_tokens, ranks); }  // T
  int64_t numbers() const;                                            // of the tables of a batch
  // Views of the tables that deal() wrote: int32 [numbers()], on the device
  void set_tables(const Tensor& numbers, Batch& batch_of_rank) const;
};

// What a rank has of some sequences, for batches one after another
struct Dealt {
  std::vector<int32_t> tokens, targets;  // [sequences, T]; of padding 0 and kNoTarget
  std::vector<int32_t> numbers;          // [batches, numbers()]: see Batch
  std::vector<int64_t> from;             // [sequences, T]: the index of each in the sequences' tokens, or -1
};
// `sequences`: those of one batch, which is added. Documents must be checked: see token_ids.h.
void deal_batch(const DealtShape& shape, const SequencesView& sequences, Dealt& out);

}  // namespace tessera

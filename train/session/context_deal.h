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
//
// With sparse blocks by rules (model.sparse) the kernels walk lists of a rank's own query blocks, which are
// made once for all sequences (model/sparse_lists.h). So there the division is by a fixed rule, whatever the
// documents are. Lists for each batch would follow the documents: but then each sequence of a batch needs its
// own, and their size changes. The rule: of every S blocks that follow one another, in their order, each of
// the S ranks gets one, and the rank with the least work so far gets the block with the most. It does not ask
// where the sequence ends, so that lists of the longest sequence serve all. Documents hide keys from
// neighbouring blocks alike, so with them the work is about equal as well, within a tenth for documents of
// thousands of tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "data/sequences.h"
#include "model/model.h"

namespace tessera {

// How many blocks of a model see which keys
struct SeenKeys {
  int64_t window = Windows::kFull;
  SparsePattern sparse = {};
  int64_t blocks = 1;
  // Whether rules hide keys of a sequence of this many tokens, so that kernels walk lists
  bool listed(int64_t tokens) const { return sparse.window > 0 && !sparse.shows_all(tokens); }
};
std::vector<SeenKeys> seen_keys_of(const ModelConfig& model);  // each once

// T: the rows that each of `ranks` has of a sequence of `all_tokens` tokens, padding included
int64_t dealt_tokens(int64_t all_tokens, int64_t ranks, std::span<const SeenKeys> seen);

inline constexpr int32_t kNoPlace = -1;

// The batches of a rank
struct DealtShape {
  int64_t ranks = 1, rank = 0;
  int64_t batch;       // B: the number of sequences
  int64_t all_tokens;  // tokens of each sequence, on all ranks together
  std::vector<SeenKeys> seen = {SeenKeys{}};

  int64_t tokens() const { return dealt_tokens(all_tokens, ranks, seen); }  // T
  int64_t numbers() const;  // int32 values in the tables of a batch
  // Views of the tables that deal() wrote: int32 [numbers()], on the device
  void set_tables(const Tensor& numbers, Batch& batch_of_rank) const;
};

// For each rank, its T rows: the places of their tokens in the sequence, in ascending order; rows of padding,
// at the end, have kNoPlace. [S, T]. `documents`: [all_tokens, 2] as in Sequences; empty: the sequence is one
// document.
std::vector<int32_t> deal_tokens(const DealtShape& shape, std::span<const int32_t> documents);

// The query blocks of the ranks, for the lists of sequences of up to shape.all_tokens tokens. Without size:
// there are no lists.
DealtBlocks dealt_blocks(const DealtShape& shape);

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

// Sequences to train on or to evaluate, and where they come from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/documents.h"
#include "kernels/base/no_target.h"

namespace tessera {

// A view of sequences that lie in other memory; it has the fields of Sequences.
struct SequencesView {
  std::span<const int32_t> tokens, targets, documents = {}, kinds = {};
  std::span<const double> log_probs = {};
  std::span<const float> weights = {};
  std::span<const int32_t> teacher_ids = {};
  std::span<const float> teacher_logits = {};

  SequencesView tokens_from(int64_t first, int64_t count) const {
    const auto part = [&](auto of, int64_t each) {
      return of.empty() ? of
                        : of.subspan(static_cast<size_t>(each * first), static_cast<size_t>(each * count));
    };
    const int64_t largest = std::ssize(teacher_ids) / std::max<int64_t>(std::ssize(tokens), 1);
    return {.tokens = part(tokens, 1),
            .targets = part(targets, 1),
            .documents = part(documents, 2),
            .kinds = part(kinds, 1),
            .log_probs = part(log_probs, 1),
            .weights = part(weights, 1),
            .teacher_ids = part(teacher_ids, largest),
            .teacher_logits = part(teacher_logits, largest + 1)};
  }
};

// The number of tokens whose loss counts
inline int64_t counted(std::span<const int32_t> targets) {
  return std::ssize(targets) - std::count(targets.begin(), targets.end(), kNoTarget);
}

// The sum of the weights of these tokens; if sequences have no weights, their number
inline double weight_of_targets(const SequencesView& sequences) {
  if (sequences.weights.empty()) return static_cast<double>(counted(sequences.targets));
  double sum = 0;
  for (size_t n = 0; n < sequences.targets.size(); ++n)
    if (sequences.targets[n] != kNoTarget) sum += static_cast<double>(sequences.weights[n]);
  return sum;
}

// The lengths of the documents of a sequence, of its `documents`: [T, 2] as in Sequences
std::vector<int64_t> document_lengths(std::span<const int32_t> documents);

// Calls on_pair(n) with the first token of each pair of documents in sequences of T tokens.
template <class OnPair>
void for_each_first_of_pair(const SequencesView& sequences, int64_t T, const OnPair& on_pair) {
  if (sequences.documents.empty()) return;
  for (int64_t n = 0; n < std::ssize(sequences.kinds); ++n)
    if (begins_pair(sequences.documents.data(), sequences.kinds.data(), n, T)) on_pair(n);
}
// The number of pairs
inline int64_t count_pairs(const SequencesView& sequences, int64_t T) {
  int64_t pairs = 0;
  for_each_first_of_pair(sequences, T, [&](int64_t) { ++pairs; });
  return pairs;
}
// The sum of the weights of the pairs
inline double weight_of_pairs(const SequencesView& sequences, int64_t T) {
  double sum = 0;
  for_each_first_of_pair(sequences, T, [&](int64_t n) {
    sum += sequences.weights.empty() ? 1 : static_cast<double>(sequences.weights[static_cast<size_t>(n)]);
  });
  return sum;
}

// The place of token n = b T + t in its document
inline int64_t position_in(const SequencesView& sequences, int64_t n, int64_t T) {
  return position_of(sequences.documents.empty() ? nullptr : sequences.documents.data(), n, T);
}

// `count` sequences of T tokens, one after another
struct Sequences {
  std::vector<int32_t> tokens;     // [count, T]
  std::vector<int32_t> targets;    // [count, T]: the next token; kNoTarget if its loss does not count
  std::vector<int32_t> documents;  // [count, T, 2]: where each token's document begins and ends in its
                                   // sequence; empty if each sequence is one document

  std::vector<int32_t> kinds = {};  // [count, T]: the DocumentKind of each token's document; empty: all plain
  // [count, T]: at the first token of each document, the sum of the reference's log-probabilities of its
  // tokens that count; else 0. Empty: they are not stored (log_probs.h)
  std::vector<double> log_probs = {};
  // [count, T]: factors of the losses of targets; for a pair only that of its first token counts. Empty: all
  // are 1
  std::vector<float> weights = {};
  // [count, T, K] and [count, T, K + 1]: a teacher's logits after each token that are stored with the data,
  // see teacher_logits.h; 0 for targets that do not count. Empty: none are stored
  std::vector<int32_t> teacher_ids = {};
  std::vector<float> teacher_logits = {};

  operator SequencesView() const {
    return {tokens, targets, documents, kinds, log_probs, weights, teacher_ids, teacher_logits};
  }
  bool operator==(const Sequences&) const = default;
};

void clear(Sequences& sequences);
// Appends `more`, which has the same fields. Where only one of the two has weights, the tokens of the other
// get the weight 1.
void append(Sequences& to, const SequencesView& more);

// Tokens of a sequence that lie side by side in a file, and in one document if the data knows its documents
struct SequencePiece {
  int64_t begin = 0, count = 0;          // their place in the sequence
  std::string file = {};                 // a shard, or a text
  int64_t first_token = 0;               // their place in the file
  std::optional<int64_t> document = {};  // its number in all of the data, counted from 0
  std::optional<int64_t> line = {};      // the line of a text whose bytes are its tokens, counted from 1
};

// A source of sequences. The sequence at a position depends only on the source: so a run resumes from a
// position, and each rank fetches its own positions. Several threads may use it.
class SequenceSource {
 public:
  virtual ~SequenceSource() = default;
  virtual int64_t sequences_per_epoch() const = 0;
  // The sequences at these positions into `out`, whose memory is reused. Positions continue over epochs.
  // Error: a position < 0, and what reading the data throws.
  virtual void fetch_at(std::span<const int64_t> positions, Sequences& out) const = 0;
  // Those at position, position + 1, ...
  void fetch(int64_t position, int64_t count, Sequences& out) const;
  // The lengths of the documents of the sequence at `position`, padding as one, in their order; of documents
  // that are joined, one
  virtual std::vector<int64_t> document_lengths(int64_t position) const = 0;
  // The origins of the tokens of the sequence at `position`, in their order; padding has none.
  virtual std::vector<SequencePiece> pieces(int64_t position) const = 0;
};

}  // namespace tessera

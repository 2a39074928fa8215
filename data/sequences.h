// Sequences to train on or to evaluate, and where they come from.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/no_target.h"

namespace tessera {

// `count` sequences of T tokens, one after another
struct Sequences {
  std::vector<int32_t> tokens;     // [count, T]
  std::vector<int32_t> targets;    // [count, T]: the next token; kNoTarget where its loss does not count
  std::vector<int32_t> documents;  // [count, T, 2]: where each token's document begins and ends in its
                                   // sequence; empty where a sequence is one document
  bool operator==(const Sequences&) const = default;
};

// The sequence at a position is a function of the source alone: a run resumes from a position, and each rank
// fetches its own positions. Safe to call from several threads.
class SequenceSource {
 public:
  virtual ~SequenceSource() = default;
  virtual int64_t sequences_per_epoch() const = 0;
  // The sequences position, position + 1, ... into `out`, whose memory is reused. Positions go on from epoch to
  // epoch. Error: position < 0, and what reading the data throws.
  virtual void fetch(int64_t position, int64_t count, Sequences& out) const = 0;
};

}  // namespace tessera

// The log-probabilities that a model gives the documents of a stream: what ./evaluate --log-probs writes.
#pragma once

#include "train/run/collective_walk.h"
#include "train/session/session.h"

namespace tessera {

struct LogProbJob {
  const SequenceSource& data;  // whole sequences of one stream
  int64_t documents = 0;       // of that stream
};

// Batches over all sequences of `job`, which must outlive them. Their results are two numbers for each
// document: the sum of the log-probabilities of its tokens that count, and these tokens.
SharedBatches log_prob_batches(Session& session, const LogProbJob& job);

}  // namespace tessera

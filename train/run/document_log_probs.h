// The log-probabilities that a model gives the documents of a stream: what ./evaluate --log-probs writes.
#pragma once

#include "data/packed_loader.h"
#include "train/run/collective_walk.h"
#include "train/session/session.h"

namespace tessera {

struct LogProbJob {
  const TokenStream& stream;
  const PackedLoader& data;  // of all of its documents
};

// Batches over all sequences of `job`, which must outlive them. The results are two numbers for each
// document, at log_prob_place(): the sum of the log-probabilities of its tokens that count, and the number of
// these tokens.
SharedBatches log_prob_batches(Session& session, const LogProbJob& job);

}  // namespace tessera

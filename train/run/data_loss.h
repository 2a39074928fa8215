// The loss on a data set: what ./train prints as the validation loss, and what ./evaluate computes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/sequences.h"
#include "train/run/position_losses.h"
#include "train/session/session.h"

namespace tessera {

// The first `sequences` of `data`, in batches of the session's largest batch; the last one may be smaller. A
// rank takes every ranks-th batch.
struct LossJob {
  const SequenceSource& data;
  int64_t sequences = 0;
  bool by_position = false;
  int64_t rank = 0, ranks = 1;
  // Called before each batch with the sequences that all ranks have done; false: no more is wanted.
  std::function<bool(int64_t done)> continues = {};
};

struct DataLoss {
  double loss = 0;  // nats a token: the mean over the tokens that count; NaN: none does
  int64_t sequences = 0, counted = 0;
  std::vector<double> position_sums = {}, position_tokens = {};  // by range of positions, with by_position
};

// Sums of every batch, 0 for the batches of other ranks. Added over all ranks, with RankGroup::sum(), they
// are the argument of data_loss(), which adds the batches up in their order: so the loss has the same bits
// whatever the number of ranks.
std::vector<double> batch_sums(Session& session, const LossJob& job);
DataLoss data_loss(const Session& session, const LossJob& job, const std::vector<double>& sums);

}  // namespace tessera

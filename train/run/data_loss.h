// The loss on a data set: what ./train prints as the validation loss, and what ./evaluate computes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/sequences.h"
#include "kernels/preference.h"
#include "train/run/collective_walk.h"
#include "train/run/position_losses.h"
#include "train/session/session.h"

namespace tessera {

// The first `sequences` of `data`, in batches of the session's largest batch; the last one may be smaller.
struct LossJob {
  const SequenceSource& data;
  int64_t sequences = 0;
  bool by_position = false;
  // Small: sequences are read one by one, by groups of tokens, each of which sees the older ones as the cache
  // has them. Not of pairs, of documents that are masked, and of several ranks a sequence
  CacheDtype cache = CacheDtype::kAuto;
  // The loss of pairs that is measured, and the losses of its reference, if it has one; null: cross entropy
  const PreferenceRule* pairs = nullptr;
  std::function<std::vector<float>(const SequencesView&, int64_t count)> reference = {};
};

struct DataLoss {
  double loss = 0;  // nats a token: the mean over the tokens that count; NaN: none does
  int64_t sequences = 0, counted = 0;  // of pairs: the number of these, and `loss` is their mean
  std::vector<double> figures = {};    // of pairs: mean_figures() of PreferenceFigures::at()
  std::vector<double> position_sums = {}, position_tokens = {};  // by range of positions, with by_position
};

// The batches of `job`, which must outlive them. Their results are the argument of data_loss(), which adds
// the batches up in their order: so the loss has the same bits whatever the number of ranks.
SharedBatches loss_batches(Session& session, const LossJob& job);
DataLoss data_loss(const Session& session, const LossJob& job, const std::vector<double>& results);

}  // namespace tessera

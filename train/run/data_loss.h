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

// Measures the first `sequences` of `data`, in batches as large as the session's largest; the last one may be
// smaller.
struct LossJob {
  const SequenceSource& data;
  int64_t sequences = 0;
  bool by_position = false;
  // If it is a small number format, sequences are read one by one, in groups of tokens; each group sees the
  // older ones as the cache holds them. Not possible for pairs, for masked documents, or with several ranks a
  // sequence
  CacheDtype cache = CacheDtype::kAuto;
  // The loss of pairs to measure, and the losses of its reference, if it has one; null: cross entropy
  const PreferenceRule* pairs = nullptr;
  std::function<std::vector<float>(const SequencesView&, int64_t count)> reference = {};
};

struct DataLoss {
  double loss = 0;  // the mean over the tokens that count, nats a token; NaN: no token counts
  int64_t sequences = 0, counted = 0;  // with a loss of pairs: `counted` is the number of pairs, and `loss`
                                       // their mean
  std::vector<double> figures = {};    // with a loss of pairs: mean_figures() of PreferenceFigures::at()
  std::vector<double> position_sums = {}, position_tokens = {};  // by range of positions; with by_position
};

// The batches of `job`, which must outlive them. Their results are the argument of data_loss(), which adds up
// the batches in their order. So the loss has the same bits for any number of ranks.
SharedBatches loss_batches(Session& session, const LossJob& job);
DataLoss data_loss(const Session& session, const LossJob& job, const std::vector<double>& results);

}  // namespace tessera

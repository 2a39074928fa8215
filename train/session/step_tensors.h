// StepTensors: what a training step reads besides its weights: tokens and targets, and what documents, pairs,
// weights of losses, a stored reference, a stored teacher, experts and a context need of them. The host sends
// it once a step, a row for each micro-step. A micro-step reads the first row; its own is copied there, so
// that all micro-steps can be the same graph.
#pragma once

#include "train/session/context_deal.h"
#include "train/session/host_tensors.h"
#include "train/session/run_shape.h"

namespace tessera {

class StepTensors {
 public:
  // Allocates. `shape` must outlive it. `context`: this rank's place in its context
  StepTensors(const Stream& stream, Arena& arena, Arena& host, const RunShape& shape,
              const AxisPlace& context);
  StepTensors(const StepTensors&) = delete;

  // The sequences of this rank, or of its context, whose ranks each take their part of the tokens. Error:
  // what token_ids.h refuses; sequences that lack what the loss reads, or have weights that it does not.
  void send(const SequencesView& sequences);
  void copy_to_first(const Stream& stream, int64_t row);
  Batch batch(int64_t row) const;  // the tensors of a row, without what a micro-step writes

 private:
  bool deals() const { return context_.size > 1; }
  DealtShape dealt_shape() const;
  void send_dealt(const SequencesView& sequences);
  void send_ids(std::span<const int32_t> tokens, std::span<const int32_t> targets);
  void send_pairs(const SequencesView& sequences);
  // Sends rows with `each` numbers for a token. `own`: if the context has several ranks, the tokens of this
  // rank
  template <class T>
  void send_rows(SentTensor& to, std::span<const T> of_all, size_t each, const Dealt* own);
  void send_weights(const SequencesView& sequences, const Dealt* own = nullptr);
  void send_teacher(const SequencesView& sequences, const Dealt* own = nullptr);

  const RunShape& shape_;
  AxisPlace context_;
  SentTensor tokens_, targets_;              // [micro_steps, B T]
  SentTensor documents_, positions_;         // [micro_steps, B T, 2] [micro_steps, B T]; with shape.documents
  SentTensor dealt_;                         // [micro_steps, DealtShape::numbers()]; instead of these if a
                                             // context has several ranks
  SentTensor kinds_;                         // [micro_steps, B T_all]; with a loss of pairs
  SentTensor all_documents_, all_targets_;   // [micro_steps, B T_all, 2] [micro_steps, B T_all]; with a loss
                                             // of pairs, if a context has several ranks
  SentTensor log_probs_;                     // [micro_steps, B T_all, 2]; with a stored reference
  SentTensor weights_;                       // [micro_steps, B T], for pairs B T_all; with shape.weights
  SentTensor teacher_ids_, teacher_logits_;  // [micro_steps, B T, K] and K + 1; with a stored teacher
  SentTensor counted_rows_;  // [micro_steps, B T]: see Batch; with losses of routers, if there
                             // may be padding
};

}  // namespace tessera

// ./evaluate: computes the loss of a model on data, and lets it answer multiple-choice tasks.
#pragma once

#include "train/evaluate/evaluated_model.h"
#include "train/launch/world.h"

namespace tessera {

// With several ranks, each computes a share of the batches, and rank 0 prints. The results do not depend on
// the number of ranks. On the data of a checkpoint's run, with the run's sequence length and micro-batch, the
// loss is the run's validation loss to the bit; with train.lora to rounding. Error: as RunData and
// read_tasks(); neither data nor tasks; the data is not that of the run; too little memory.
void evaluate(const EvaluatedModel& model, const EvaluateOptions& options, const World& world);

}  // namespace tessera

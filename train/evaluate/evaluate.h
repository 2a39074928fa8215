// ./evaluate: the loss of a model on data, and the multiple-choice tasks that it answers.
#pragma once

#include "train/evaluate/evaluated_model.h"
#include "train/launch/world.h"

namespace tessera {

// With several ranks each takes a share of the batches, and rank 0 prints; the results do not depend on their
// number. On the data of a checkpoint's run, with its sequence length and micro-batch, the loss is the
// validation loss of the run to the bit; with train.lora to rounding. Error: as RunData and read_tasks();
// neither data nor tasks; other data than the run's; too little memory.
void evaluate(const EvaluatedModel& model, const EvaluateOptions& options, const World& world);

}  // namespace tessera

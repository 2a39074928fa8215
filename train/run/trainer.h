// The training loop: data in, steps, evaluation, samples, checkpoints, until the last step or a signal.
#pragma once

#include "train/config/config.h"
#include "train/launch/world.h"
#include "train/run/trainer_options.h"

namespace tessera {

// Trains, and returns after the last step or after SIGINT, SIGTERM, SIGHUP or SIGUSR1. After a signal the
// current step is finished, or dropped if it is long (stopping.h), and a checkpoint is written. A running
// evaluation or sample is skipped; resuming repeats it. A second signal, more than a second later, ends the
// program at once. Error: everything that stops a run early.
//
// The process is one rank of `world`, and every rank calls this; rank 0 prints and writes. config.ranks is
// world.size. An error on one of several ranks ends all their processes (see ProcessGroup).
void train(const Config& config, const TrainerOptions& options, const World& world);

}  // namespace tessera

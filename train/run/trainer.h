// The training loop: data in, steps, evaluation, samples, checkpoints, until the last step or a signal.
#pragma once

#include "train/config/config.h"
#include "train/launch/world.h"
#include "train/run/trainer_options.h"

namespace tessera {

// Trains and returns when the last step is done, or after SIGINT, SIGTERM or SIGHUP: then the current step
// is finished, or dropped if it is long (stopping.h), and a checkpoint written; an evaluation or a sample
// that is under way is left out, and made by a resume. A signal that comes more than a second later ends
// the program at once. Error: everything that stops a run early.
//
// As one rank of `world`, which runs the same elsewhere: rank 0 prints and writes. config.ranks is
// world.size. What stops a run of several ranks early ends the process (see ProcessGroup).
void train(const Config& config, const TrainerOptions& options, const World& world);

}  // namespace tessera

// --ranks and --gpus of ./train and ./bench step.
#pragma once

#include "kernels/base/options.h"
#include "train/run/start_ranks.h"

namespace tessera {

inline void add_rank_options(Options& app, AskedRanks& asked) {
  Option ranks =
      app.add("--ranks", asked.ranks,
              "Processes of the run, one per GPU, or on the CPU; default: one for each visible GPU, "
              "on the CPU 1; under torchrun, srun or mpirun: their number");
  Option gpus = app.add("--gpus", asked.gpus, "Like --ranks, but fails if there are not enough GPUs");
  for (Option option : {ranks, gpus}) option.type_name("N").within(1, 65536);
  gpus.excludes(ranks);
}

}  // namespace tessera

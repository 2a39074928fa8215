// --ranks and --gpus of ./train and ./bench step.
#pragma once

#include <CLI/CLI.hpp>

#include "train/run/start_ranks.h"

namespace tessera {

inline void add_rank_options(CLI::App& app, AskedRanks& asked) {
  CLI::Option* ranks =
      app.add_option("--ranks", asked.ranks,
                     "Processes of the run, one per GPU, or on the CPU; default: one for each visible GPU, "
                     "on the CPU 1; under torchrun, srun or mpirun: their number");
  CLI::Option* gpus =
      app.add_option("--gpus", asked.gpus, "Like --ranks, but fails if there are not enough GPUs");
  for (CLI::Option* option : {ranks, gpus}) option->type_name("N")->check(CLI::Range(1, 65536));
  gpus->excludes(ranks);
}

}  // namespace tessera

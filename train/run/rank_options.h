// --ranks and --gpus of ./train and ./bench step.
#pragma once

#include <CLI/CLI.hpp>

#include "train/run/start_ranks.h"

namespace tessera {

inline void add_rank_options(CLI::App& app, AskedRanks& asked) {
  CLI::Option* ranks = app.add_option("--ranks", asked.ranks,
                                      "Processes that share a step, one a GPU, or on the CPU; default: all "
                                      "visible GPUs, on the CPU 1. Under torchrun, srun or mpirun: theirs");
  CLI::Option* gpus = app.add_option("--gpus", asked.gpus, "The same, and they must be GPUs");
  for (CLI::Option* option : {ranks, gpus}) option->type_name("N")->check(CLI::Range(1, 65536));
  gpus->excludes(ranks);
}

}  // namespace tessera

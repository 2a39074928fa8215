// Processes that somebody started by hand, with torchrun's variables, on machines of two ranks.
#pragma once

#include "tests/train_ranks.h"
#include "train/launch/connection.h"

namespace tessera::testing {

struct RanksByHand : TrainRanks {
  int port = port_of(listen_at("127.0.0.1", 0, Reach::kThisMachine));  // free, when it is asked

  void start(int rank, const Words& more = {}, int size = 2) {
    start_in(folder, rank,
             with(sets({"data.train=" + (folder / "text.txt").string(),
                        "train.folder=" + (folder / "out").string(), "train.steps=5"}),
                  more),
             size);
  }
  // In a working folder, which is that of a machine
  void start_in(const std::filesystem::path& machine, int rank, const Words& words, int size) {
    start_program(machine, rank, with({"--config", (folder / "small.yaml").string()}, words), size);
  }
  void start_program(const std::filesystem::path& machine, int rank, const Words& words, int size) {
    const std::string number = std::to_string(rank), local = std::to_string(rank % 2),
                      own = "process_" + std::to_string(processes.size());
    std::filesystem::create_directory(folder / own);  // its output is kept beside it
    const bool moves = machine != folder;
    processes.emplace_back(
        "/usr/bin/env",
        with({"-C", (moves ? machine : folder / own).string(), "RANK=" + number,
              "WORLD_SIZE=" + std::to_string(size), "LOCAL_RANK=" + local, "LOCAL_WORLD_SIZE=2",
              "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port), TRAIN_BINARY},
             words),
        Process::Options{.folder = folder / own});
  }
  std::vector<ProcessResult> end() {
    std::vector<ProcessResult> results;
    for (Process& process : processes) results.push_back(process.finish());
    processes.clear();
    return results;
  }

  std::vector<Process> processes;
};

}  // namespace tessera::testing

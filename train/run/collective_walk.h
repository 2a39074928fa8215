// Batches that the ranks of a run share: those of an evaluation, of a task, of the needle test.
//
// A forward may have to wait for other ranks, because each rank holds a part of the weights. So all ranks
// must make the same number of forwards. The work is done in rounds: in a round each rank runs one batch, and
// before each round the ranks agree that there is one. If the last round has fewer batches than ranks, the
// other ranks run the last batch once more, and those results do not count.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "train/run/stopping.h"
#include "train/tasks/score.h"

namespace tessera {

struct SharedBatches {
  int64_t count = 0;
  int64_t results = 0;  // how many numbers all batches together give
  // Runs a batch, and writes its numbers to their places in `results`. It leaves the other places as they
  // are.
  std::function<void(int64_t batch, std::span<double> results)> run;
  // Called before a round, with the number of batches that all ranks have done
  std::function<void(int64_t done)> progress = {};
};

// The results of all batches, on every rank. Their bits do not depend on the number of ranks. Returns nothing
// if a signal to any rank stopped the work; all ranks then stop after the same round. All ranks call it with
// the same batches.
std::optional<std::vector<double>> run_batches(Stopping& stopping, const SharedBatches& batches);

// Batches for the choices of a task. The results are the scores of all choices: the argument of
// task_result(). `session` and `choices` must outlive the batches.
SharedBatches task_batches(Session& session, const TaskBatches& choices,
                           std::function<void(int64_t done)> progress = {});

}  // namespace tessera

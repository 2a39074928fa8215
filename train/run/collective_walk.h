// Batches that the ranks of a run share: those of an evaluation, of a task, of the needle test.
//
// A forward may wait for other ranks, for weights of which each holds a part. So all ranks make equally many
// forwards, and none leaves a walk alone. A walk goes by rounds, in which each rank runs one batch; before a
// round the ranks agree that there is one. Where the last round has fewer batches than ranks, the others run
// the last batch once more, and what they find does not count.
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
  int64_t results = 0;  // numbers, of all batches together
  // Runs a batch, and writes its numbers to their places in `results`; the others stay as they are.
  std::function<void(int64_t batch, std::span<double> results)> run;
  // Called before a round, with the batches that all ranks have done
  std::function<void(int64_t done)> progress = {};
};

// The results of all batches, at every rank: their bits do not depend on the number of ranks. Nothing if a
// signal to any rank stopped the walk: after the same round at all. All ranks call it with the same batches.
std::optional<std::vector<double>> run_batches(Stopping& stopping, const SharedBatches& batches);

// The choices of a task; the results are the scores of all of them, the argument of task_result(). `session`
// and `choices` must outlive them.
SharedBatches task_batches(Session& session, const TaskBatches& choices,
                           std::function<void(int64_t done)> progress = {});

}  // namespace tessera

#include "train/run/collective_walk.h"

#include <algorithm>

namespace tessera {

std::optional<std::vector<double>> run_batches(Stopping& stopping, const SharedBatches& batches) {
  const AxisPlace place = stopping.ranks().place(Axis::kData);
  std::vector<double> results(static_cast<size_t>(batches.results)), not_counted(results.size());
  for (int64_t done = 0; done < batches.count; done += place.size) {
    if (!stopping.goes_on()) return {};
    if (batches.progress) batches.progress(done);
    const int64_t mine = done + place.rank;
    batches.run(std::min(mine, batches.count - 1), mine < batches.count ? results : not_counted);
  }
  results = stopping.sum(std::move(results));
  if (stopping.signal() != 0) return {};
  return results;
}

SharedBatches task_batches(Session& session, const TaskBatches& choices,
                           std::function<void(int64_t)> progress) {
  return {.count = choices.count(),
          .results = choices.choices(),
          .run = [&](int64_t batch, std::span<double> scores) { choices.score(session, batch, scores); },
          .progress = std::move(progress)};
}

}  // namespace tessera

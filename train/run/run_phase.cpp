#include "train/run/run_phase.h"

#include "train/memory/data_weights.h"
#include "train/memory/plan_advice.h"
#include "train/session/device.h"
#include "train/session/equal_work.h"

namespace tessera {

RunPhase::RunPhase(const Config& run, size_t index, const RunPlan& plan, bool shift)
    : index_(index),
      config_(run.of_phase(index)),
      data_(config_, shift),
      plan_(with_weights(plan, data_.has_weights())) {}

std::vector<int64_t> RunPhase::positions_of_step(int64_t position, const AxisPlace& rank) const {
  const auto lengths_of = [&](int64_t place) { return data_.train().document_lengths(position + place); };
  std::vector<int64_t> positions = places_of_rank(shape(), rank, work_of_step(shape(), lengths_of));
  for (int64_t& each : positions) each += position;
  return positions;
}

void RunPhase::fetch_step(int64_t position, const AxisPlace& rank, Sequences& into) const {
  data_.train().fetch_at(positions_of_step(position, rank), into);
}

void RunPhase::allocate(const Memory& memory) {
  arena_.emplace(make_arena(plan_.device));
  try {
    arena_->reserve(plan_.peak());
    if (memory.recorded) arena_->record();
    Arena::Phase setup(*arena_, "setup");
    state_.emplace(memory.backend, *arena_, shape(), memory.ranks.step_axes());
  } catch (const OutOfMemory& error) {
    // The memory was free when the plan was made, but not in one piece, or another program has taken it
    // since.
    throw OutOfMemory(
        fmt::format("{}\n{}", error.what(), advice_text(advice(config_, plan_, memory.resuming))));
  }
}

}  // namespace tessera

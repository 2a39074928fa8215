#include "train/run/run_phase.h"

#include "train/memory/data_weights.h"
#include "train/memory/plan_advice.h"
#include "train/session/device.h"

namespace tessera {

RunPhase::RunPhase(const Config& run, size_t index, const RunPlan& plan, bool shift)
    : index_(index),
      config_(run.of_phase(index)),
      data_(config_, shift),
      plan_(with_weights(plan, data_.has_weights())) {}

void RunPhase::fetch_step(int64_t position, const AxisPlace& rank, Sequences& into) const {
  const int64_t mine = shape().sequences_per_rank();
  data_.train().fetch(position + rank.rank * mine, mine, into);
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

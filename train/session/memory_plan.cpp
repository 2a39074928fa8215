#include "train/session/memory_plan.h"

#include "kernels/attention/fallback.h"
#include "train/session/decoder.h"
#include "train/session/plan_ranks.h"
#include "train/session/train_state.h"

namespace tessera {
namespace {

// An arena without memory, and the stage of its peak
class Walk {
 public:
  explicit Walk(const DeviceTraits& device)
      : be(make_plan_backend(device)), arena(Arena::plan(device.device)) {}

  void ended(const char* stage) {
    if (arena.ledger().peak_bytes() > peak_) stage_ = stage;
    peak_ = arena.ledger().peak_bytes();
  }
  void evaluation_and_sample(Session& session) {
    session.evaluate({}, session.shape().batch);
    ended("an evaluation");
    const int64_t longest = session.shape().longest_sample();
    if (longest == 0) return;
    Decoder decoder(session, {.capacity = longest, .cache = session.shape().sample_cache});
    decoder.start(0, std::vector<int32_t>(static_cast<size_t>(longest)), 0);
    decode_ = decoder.kernels_text();
    ended("a sample");
  }
  MemoryPlan plan() const { return {.ledger = arena.ledger(), .peak_stage = stage_, .decode = decode_}; }

  std::unique_ptr<Backend> be;
  Arena arena;

 private:
  int64_t peak_ = 0;
  const char* stage_ = "";
  std::string decode_;
};

}  // namespace

MemoryPlan plan_stages(const RunShape& shape, const DeviceTraits& device) {
  Walk walk(device);
  const PlanRanks ranks(shape, device.device);
  TrainState state(*walk.be, walk.arena, shape, ranks.axes());
  walk.ended("the setup");
  state.walk_step();
  walk.ended("a training step");
  walk.evaluation_and_sample(state.session());
  if (shape.loss.pairs && shape.loss.needs_reference) {
    state.reference_losses({}, shape.micro_batch, shape.sequence_length);
    walk.ended("an evaluation");
  }
  for (const std::string& name : state.store().kept().names())
    for (size_t b = 0; b < state.store().layout().buckets.size(); ++b)
      state.store().with_whole(name, b, [](const ParamReader&) {});
  walk.ended("a checkpoint");
  MemoryPlan plan = walk.plan();
  if (const MemoryLedger* host = state.host_ledger()) plan.host_bytes = host->peak_bytes();
  plan.attention = fallback_note(state.model().attention.of(0));
  return plan;
}

MemoryLedger plan_memory(const RunShape& shape, const DeviceTraits& device) {
  return plan_stages(shape, device).ledger;
}

MemoryPlan plan_session(const SessionShape& shape, const DeviceTraits& device) {
  Walk walk(device);
  Session session(*walk.be, walk.arena, shape);
  walk.ended("the setup");
  walk.evaluation_and_sample(session);
  if (shape.largest_logits > 0) {
    session.largest_logits({}, shape.batch, shape.sequence_length, 1);
    walk.ended("the largest logits");
  }
  return walk.plan();
}

}  // namespace tessera

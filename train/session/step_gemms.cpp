#include "train/session/step_gemms.h"

#include <algorithm>

#include "kernels/gemm/linear_gemms.h"
#include "train/session/plan_ranks.h"
#include "train/session/train_state.h"

namespace tessera {
namespace {

// With the calls of all `micro_steps`
std::vector<StepGemm> walk(const RunShape& shape, const DeviceTraits& device, int64_t micro_steps) {
  std::vector<StepGemm> found;
  const auto see = [&](const Gemm& gemm) {
    const GemmKey key = key_of(gemm);
    const auto known = std::ranges::find(found, key, &StepGemm::key);
    if (known != found.end()) ++known->calls;
    if (known == found.end()) found.push_back({.key = key, .calls = 1});
  };
  const std::unique_ptr<Backend> be = make_plan_backend(device, [&](const AnyOp& op) { each_gemm(op, see); });
  Arena arena = Arena::plan(device.device);
  const PlanRanks ranks(shape, device.device);
  TrainState(*be, arena, shape, ranks.axes()).walk_step(micro_steps);
  return found;
}

}  // namespace

// The second micro-batch of a step is as all that follow.
std::vector<StepGemm> step_gemms(const RunShape& shape, const DeviceTraits& device) {
  std::vector<StepGemm> gemms = walk(shape, device, std::min<int64_t>(shape.micro_steps, 2));
  if (shape.micro_steps > 1)
    for (const StepGemm& first : walk(shape, device, 1))
      std::ranges::find(gemms, first.key, &StepGemm::key)->calls -= first.calls;
  return gemms;
}

}  // namespace tessera

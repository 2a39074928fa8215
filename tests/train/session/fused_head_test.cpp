// Training with the logits and the loss in one, against training with separate operations.
#include "tests/recorded_steps.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

RunShape shape_with(bool tied, int64_t chunk) {
  return {.model = {.vocab_size = 201, .context = 24, .layers = 2, .heads = 2, .channels = 32, .tied = tied},
          .micro_batch = 2,
          .micro_steps = 2,
          .sequence_length = 24,
          .classifier_chunk = chunk};
}

TEST(FusedHead, TrainsAsSeparateOperationsDo) {
  for (const bool tied : {true, false})
    for (const int64_t chunk : {0, 20}) {
      SCOPED_TRACE(fmt::format("tied {}, chunk {}", tied, chunk));
      const RunShape separate = shape_with(tied, chunk);
      RunShape fused = separate;
      fused.fused_head = true;
      HostTensors make;
      const StepsResult want = run_steps({}, separate, 3, make), found = run_steps({}, fused, 3, make);
      for (size_t i = 0; i < want.losses.size(); ++i)
        EXPECT_NEAR(found.losses[i], want.losses[i], tolerance::kCpuAgainstPyTorch * want.losses[i]) << i;
      for (size_t i = 0; i < want.first_gradients.size(); ++i)
        EXPECT_LT(relative_error(found.first_gradients[i].tensor, want.first_gradients[i].tensor),
                  tolerance::kCpuAgainstPyTorch)
            << want.first_gradients[i].name;
      fused.cuda_graphs = true;
      expect_same_bits(run_steps({}, fused, 3, make), found);
      expect_plan_is_the_step({}, fused);
    }
}

}  // namespace
}  // namespace tessera::testing

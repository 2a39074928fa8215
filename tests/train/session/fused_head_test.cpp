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

// The logits of a cap are computed for themselves, in chunks, too.
TEST(FusedHead, WithACapOperationsAreSeparate) {
  HostTensors make;
  std::vector<StepsResult> by_chunk;
  for (const int64_t chunk : {0, 20}) {
    RunShape separate = shape_with(/*tied=*/false, chunk);
    separate.model.logit_cap = 0.1;
    RunShape fused = separate;
    fused.fused_head = true;
    by_chunk.push_back(run_steps({}, separate, 3, make));
    expect_same_bits(run_steps({}, fused, 3, make), by_chunk.back());
    expect_plan_is_the_step({}, fused);
  }
  EXPECT_NEAR(by_chunk[1].losses[0], by_chunk[0].losses[0], 1e-6);
  for (size_t i = 0; i < by_chunk[0].first_gradients.size(); ++i)
    EXPECT_LT(relative_error(by_chunk[1].first_gradients[i].tensor, by_chunk[0].first_gradients[i].tensor),
              1e-5)
        << by_chunk[0].first_gradients[i].name;
  RunShape uncapped = shape_with(/*tied=*/false, 0);
  EXPECT_GT(std::abs(run_steps({}, uncapped, 1, make).losses[0] - by_chunk[0].losses[0]), 1e-5);
}

}  // namespace
}  // namespace tessera::testing

// What goes on inside a step, on CUDA: it changes no bit, and has the figures of the CPU and of any ranks.
#include "tests/cuda/several_gpus.h"
#include "tests/cuda/twin.h"
#include "tests/inside_steps.h"
#include "tests/recorded_steps.h"

namespace tessera::testing {
namespace {

using CudaInside = CudaTest;

RunShape inside_shape(int ranks, DType dtype, Shard shard = Shard::kOptimizer) {
  RunShape shape = shared_shape(ranks, shard);
  shape.model.channels = 128, shape.model.head_dim = 64;  // a head dim that the fused kernels serve
  shape.dtype = dtype;
  shape.inside_every = 1;
  return shape;
}

// Of all that changes what a micro-step runs, with CUDA graphs and without
TEST_F(CudaInside, ChangesNoBit) {
  for (const DType dtype : kReal)
    for (NamedShape named : recorded_shapes(dtype))
      for (const bool graphs : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), named.name, graphs));
        named.shape.cuda_graphs = graphs;
        HostTensors make;
        const auto steps = [&](int64_t every) {
          named.shape.inside_every = every;
          return varied_steps(*make_cuda_backend(), named.shape, make);
        };
        const StepsResult without = steps(0);
        for (const int64_t every : {1, 2}) expect_same_bits(steps(every), without);
      }
}

TEST_F(CudaInside, HasTheFiguresOfTheCpu) {
  const InsideSteps cpu = observe_inside({}, inside_shape(1, DType::kF32), 1);
  ASSERT_TRUE(cpu.figures);
  for (const DType dtype : kReal) {
    SCOPED_TRACE(name_of(dtype));
    const InsideSteps cuda = observe_inside({}, inside_shape(1, dtype), 1, traits());
    ASSERT_TRUE(cuda.figures);
    // A gradient in bf16 is off by so much, and a first update is the sign of the gradient.
    const double allowed = dtype == DType::kF32 ? tolerance::kLossesOfRanks : tolerance::kBf16ModelGradient;
    expect_near_norms(cuda.figures->parts, cpu.figures->parts, allowed);
    for (size_t layer = 0; layer < 3; ++layer) {
      for (size_t head = 0; head < cpu.figures->largest_scores[layer].size(); ++head) {
        const double largest = cpu.figures->largest_scores[layer][head];
        EXPECT_NEAR(cuda.figures->largest_scores[layer][head], largest, allowed * largest);
      }
      EXPECT_NEAR(cuda.figures->attention_entropy[layer], cpu.figures->attention_entropy[layer], allowed);
      EXPECT_EQ(cuda.figures->dead_units[layer], cpu.figures->dead_units[layer]);
    }
  }
}

TEST_F(CudaInside, ThePlanIsTheStep) {
  for (const DType dtype : kReal) expect_plan_is_the_step(traits(), inside_shape(1, dtype));
}

TEST_F(CudaInside, OffloadedIsTheSame) {
  for (const DType dtype : kReal) {
    RunShape shape = inside_shape(1, dtype);
    const InsideSteps there = observe_inside({}, shape, 3, traits());
    shape.offload = {.optimizer = true, .weights = true, .gradients = true};
    const InsideSteps here = observe_inside({}, shape, 3, traits());
    ASSERT_TRUE(there.figures && here.figures);
    expect_near_norms(here.figures->parts, there.figures->parts, 0);
  }
}

// The limit lies between the scores, of which some heads are above it in every step.
TEST_F(CudaInside, ClipsTheHeadsThatTheCpuClips) {
  struct Clips {
    std::vector<double> losses;
    TrainState::StepResult::Scores scores = {};
    std::string weights;
  };
  const auto run = [](RunShape shape, const DeviceTraits& device, int steps) {
    Clips found;
    found.losses =
        run_shared({}, {.device = device, .shape = shape, .steps = steps, .after = [&](TrainState& state) {
                          found.scores = state.finish_step().scores.value();
                          found.weights = weight_bytes(state);
                        }});
    return found;
  };
  for (const UpdateRule& rule : {muon({}), adamw()}) {
    RunShape shape = inside_shape(1, DType::kF32);
    shape.rule = rule, shape.qk_clip = 1;
    shape.qk_clip = run(shape, {}, 1).scores.largest / 2;
    const Clips cpu = run(shape, {}, 5);
    EXPECT_GT(cpu.scores.largest, shape.qk_clip / 2);
    for (const DType dtype : kReal) {
      SCOPED_TRACE(fmt::format("{} {}", rule.name, name_of(dtype)));
      shape.dtype = dtype, shape.cuda_graphs = false;
      const Clips cuda = run(shape, traits(), 5);
      const double allowed =
          dtype == DType::kF32 ? tolerance::kCudaF32AgainstPyTorch : tolerance::kBf16ModelGradient;
      EXPECT_LT(largest_difference(cuda.losses, cpu.losses), allowed);
      if (dtype == DType::kF32) {
        EXPECT_NEAR(cuda.scores.largest, cpu.scores.largest, allowed * cpu.scores.largest);
        EXPECT_EQ(cuda.scores.clipped, cpu.scores.clipped);
      }
      shape.cuda_graphs = true;
      for (const int64_t every : {0, 2}) {
        shape.inside_every = every;
        EXPECT_TRUE(run(shape, traits(), 5).weights == cuda.weights) << "graphs, inside_every " << every;
      }
      shape.inside_every = 1;
    }
    shape.dtype = DType::kBF16;
    expect_plan_is_the_step(traits(), shape);
  }
}

class CudaInsideOfRanks : public SeveralGpus {};

TEST_F(CudaInsideOfRanks, HasTheFiguresOfOneGpu) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    const InsideSteps one = observe_inside({}, inside_shape(1, DType::kF32), 3, device);
    for (const Shard shard : kAllShards) {
      const InsideSteps ours = observe_inside(ranks, inside_shape(ranks.size, DType::kF32, shard), 3, device);
      ASSERT_TRUE(one.figures && ours.figures);
      expect_near_norms(ours.figures->parts, one.figures->parts, tolerance::kLossesOfRanks);
    }
  });
}

}  // namespace
}  // namespace tessera::testing

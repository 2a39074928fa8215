// What a loss rule may ask: weights of rows, losses of the pass, and a reference.
#include "model/losses/loss_rule.h"

#include "model/transformer.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

RunShape shape_of_loss(bool fused, int64_t chunk = 20) {
  return {.model = {.vocab_size = 201, .context = 24, .layers = 2, .heads = 2, .channels = 32},
          .micro_batch = 2,
          .micro_steps = 2,
          .sequence_length = 24,
          .classifier_chunk = chunk,
          .fused_head = fused};
}

Tensor weights_for(Arena& arena, const Batch& batch) {
  return arena.alloc(MemoryTag::kActivations, "weights of rows", DType::kF32, {batch.targets.numel()});
}

// Cross entropy whose rows count by what losses() writes to their weights
template <class Losses>
LossRule weighted(const Losses& losses, bool needs_reference = false) {
  LossRule rule = cross_entropy();
  rule.weights = [losses](Arena& arena, const Pass& pass, const Saved& saved) {
    const Tensor weights = weights_for(arena, pass.batch);
    losses(arena, pass, saved, weights);
    return weights;
  };
  rule.needs_reference = needs_reference;
  return rule;
}

LossRule weighted_by(float even, float odd) {
  return weighted([=](Arena& arena, const Pass&, const Saved&, const Tensor& weights) {
    for (int64_t n = 0; !arena.is_plan() && n < weights.numel(); ++n)
      weights.as<float>()[n] = n % 2 == 0 ? even : odd;
  });
}

// One step from fixed weights; of every second token the target may be left out.
StepsResult step_of(RunShape shape, const LossRule& loss, bool all_targets, HostTensors& make) {
  shape.loss = loss;
  const std::unique_ptr<Backend> be = make_backend({});
  Arena arena = make_arena({});
  TrainState state(*be, arena, shape);
  state.initialize(3);
  if (loss.needs_reference) state.reference().initialize(3);
  HostTensors data;
  const Tensor tokens = data.tokens({shape.tokens_per_step() + 1}, shape.model.vocab_size);
  const std::span<const int32_t> all(tokens.as<int32_t>(), static_cast<size_t>(tokens.numel()));
  std::vector<int32_t> targets(all.begin() + 1, all.end());
  for (size_t n = 1; !all_targets && n < targets.size(); n += 2) targets[n] = kNoTarget;
  state.step({.tokens = all.first(all.size() - 1), .targets = targets},
             shape.tokens_per_step() / (all_targets ? 1 : 2), kTestOptimizer, 1e-3, 1);
  StepsResult result;
  result.losses = {state.finish_step().loss};
  result.first_gradients = on_host(state.stream(), state.grads(), shape.model, make);
  return result;
}

void expect_equal(const StepsResult& found, const StepsResult& want) {
  EXPECT_EQ(found.losses, want.losses);
  for (size_t i = 0; i < want.first_gradients.size(); ++i)
    EXPECT_EQ(relative_error(found.first_gradients[i].tensor, want.first_gradients[i].tensor), 0)
        << want.first_gradients[i].name;
}

TEST(LossRule, WeightsScaleTheLossesAndGradientsOfTheirRows) {
  for (const bool fused : {false, true}) {
    SCOPED_TRACE(fused ? "fused" : "separate");
    HostTensors make;
    const RunShape shape = shape_of_loss(fused);
    // Rows of weight 0 are as those without a target: half of them, so that the others count twice.
    expect_equal(step_of(shape, weighted_by(2, 0), true, make), step_of(shape, cross_entropy(), false, make));
    expect_equal(step_of(shape, weighted_by(1, 1), true, make), step_of(shape, cross_entropy(), true, make));
    RunShape planned = shape;
    planned.loss = weighted_by(1, 0.5F);
    expect_plan_is_the_step({}, planned);
  }
}

// A reference with the model's weights has its losses: a rule gets the same from the pass itself, before a
// gradient takes the place of what the losses are made of.
TEST(LossRule, WeightsMayBeLossesOfThePassOrOfAReference) {
  for (const bool fused : {false, true}) {
    SCOPED_TRACE(fused ? "fused" : "separate");
    HostTensors make;
    const LossRule by_own =
        weighted([](Arena& arena, const Pass& pass, const Saved& saved, const Tensor& to) {
          head_losses(arena, pass, {.saved = saved, .losses = to});
        });
    const LossRule by_reference = weighted(
        [](Arena& arena, const Pass& pass, const Saved&, const Tensor& to) {
          evaluate_batch(pass.stream, arena,
                         {.model = *pass.model.reference, .batch = pass.batch, .losses = to});
        },
        /*needs_reference=*/true);
    RunShape shape = shape_of_loss(fused);
    const StepsResult own = step_of(shape, by_own, true, make),
                      plain = step_of(shape, cross_entropy(), true, make);
    EXPECT_GT(own.losses[0], 2 * plain.losses[0]);  // the mean of the squares of about ln(201)
    expect_equal(step_of(shape, by_reference, true, make), own);
    shape.loss = by_reference;
    expect_plan_is_the_step({}, shape);
  }
}

TEST(LossRule, WithoutAFormInOneTheHeadIsSeparate) {
  HostTensors make;
  LossRule rule = cross_entropy();
  rule.run_fused = nullptr;
  expect_equal(step_of(shape_of_loss(true), rule, true, make),
               step_of(shape_of_loss(false), cross_entropy(), true, make));
}

}  // namespace
}  // namespace tessera::testing

// train.freeze on any device: what is frozen keeps its bits, what is trained gets the gradients that it would
// get anyway.
#pragma once

#include <cmath>

#include "tests/tolerances.h"
#include "tests/train_steps.h"

namespace tessera::testing {

inline Freeze frozen(std::initializer_list<ParamPart> parts,
                     std::initializer_list<Freeze::Blocks> blocks = {}) {
  Freeze freeze;
  for (const ParamPart part : parts) freeze.add(part);
  for (const Freeze::Blocks& one : blocks) freeze.add(one);
  return freeze;
}

struct FrozenSteps {
  std::vector<std::string> first_gradients, before, after;  // by parameter; no gradient: ""
  double norm = 0;                                          // of the first step
};

inline FrozenSteps frozen_steps(const DeviceTraits& device, const ModelConfig& model, DType dtype,
                                const Freeze& freeze, int steps) {
  const RunShape shape{.model = model,
                       .micro_batch = 2,
                       .micro_steps = 2,
                       .sequence_length = 8,
                       .dtype = dtype,
                       .freeze = freeze};
  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  arena.reserve(plan_memory(shape, device).peak_bytes());
  TrainState state(*be, arena, shape);
  state.initialize(3);
  FrozenSteps result;
  const auto all = [&](const Params& params) {
    std::vector<std::string> found;
    for_each_param(params, model, [&](const ParamInfo&, const Tensor& t) {
      if (!t) return found.emplace_back();
      HostTensors make;
      const Tensor host = make.poisoned(t.shape);
      state.stream().run(Copy{t, host});
      state.stream().synchronize();
      return found.emplace_back(host.as<char>(), host.bytes());
    });
    return found;
  };
  result.before = all(state.store().weights());
  for (int i = 0; i < steps; ++i) {
    std::vector<int32_t> tokens, targets;
    for (int t = 0; t < 32; ++t) tokens.push_back(t * 7 % 13), targets.push_back((t * 7 + 3) % 13);
    state.step({.tokens = tokens, .targets = targets}, shape.tokens_per_step(), kTestOptimizer, 1e-2, i + 1);
    const double norm = state.finish_step().grad_norm;
    if (i > 0) continue;
    result.norm = norm;
    result.first_gradients = all(state.grads());
  }
  result.after = all(state.store().weights());
  return result;
}

inline const std::vector<Freeze>& kinds_of_freeze() {
  static const std::vector<Freeze> all{
      frozen({ParamPart::kEmbeddings}),
      frozen({ParamPart::kNorms}),
      frozen({ParamPart::kAttention, ParamPart::kMlp}),
      frozen({ParamPart::kEmbeddings, ParamPart::kAttention, ParamPart::kMlp}),
      frozen({}, {{0, 0}}),
      frozen({ParamPart::kEmbeddings, ParamPart::kNorms}, {{0, 0}, {1, 1}}),
  };
  return all;
}

inline void expect_frozen_keep_their_bits(const DeviceTraits& device, const ModelConfig& model, DType dtype) {
  std::vector<Freeze> all = kinds_of_freeze();
  if (!model.tied) all.push_back(frozen({ParamPart::kHead}));
  const FrozenSteps plain = frozen_steps(device, model, dtype, {}, 1);
  const ParamLayout layout(model, 1);
  for (const Freeze& freeze : all) {
    SCOPED_TRACE(text_of(freeze));
    const FrozenSteps own = frozen_steps(device, model, dtype, freeze, 3);
    EXPECT_EQ(own.before, plain.before);
    double squares = 0;
    int64_t trained = 0;
    for (const ParamPlace& place : layout.places) {
      const size_t i = place.index;
      if (freeze.freezes(place.info)) {
        EXPECT_EQ(own.after[i], own.before[i]) << place.info.name;
        continue;
      }
      ++trained;
      EXPECT_NE(own.after[i], own.before[i]) << place.info.name;
      EXPECT_EQ(own.first_gradients[i], plain.first_gradients[i]) << place.info.name;
      const auto* values = reinterpret_cast<const float*>(plain.first_gradients[i].data());
      for (int64_t k = 0; k < place.info.shape.numel(); ++k)
        squares += static_cast<double>(values[k]) * static_cast<double>(values[k]);
    }
    EXPECT_GT(trained, 0);
    EXPECT_NEAR(own.norm, std::sqrt(squares), tolerance::kGradientNorm * own.norm);
  }
}

}  // namespace tessera::testing

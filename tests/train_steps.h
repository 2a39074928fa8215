// Optimizer steps of a small model on any device, and what must hold on every device.
#pragma once

#include <functional>

#include "tests/masters.h"
#include "tests/support.h"
#include "train/session/decoder.h"
#include "train/session/device.h"
#include "train/session/memory_plan.h"
#include "train/session/train_state.h"

namespace tessera::testing {

struct StepsResult {
  std::vector<double> losses, grad_norms;
  std::vector<NamedTensor> first_gradients;  // of the first step, before clipping
  std::vector<NamedTensor> weights;          // after the last step: fp32 masters
};

inline constexpr OptimizerConfig kTestOptimizer{
    .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1};

inline std::vector<NamedTensor> on_host(const Stream& stream, const Params& params, const ModelConfig& model,
                                        HostTensors& make) {
  std::vector<NamedTensor> tensors;
  for_each_param(params, model, [&](const ParamInfo& info, const Tensor& t) {
    if (!t) return;  // of a frozen parameter
    tensors.push_back({info.name, make.poisoned(info.shape)});
    stream.run(Copy{t, tensors.back().tensor});
  });
  stream.synchronize();
  return tensors;
}

inline std::vector<NamedTensor> masters_on_host(TrainState& state, HostTensors& make) {
  return kept_on_host(state.stream(), state.store(), kMaster, make);
}

// From a fixed seed, on tokens that depend on the step alone. The tensors live in `make`. `prepare` is called
// before the first step.
inline StepsResult run_steps(const DeviceTraits& device, const RunShape& shape, int steps, HostTensors& make,
                             double learning_rate = 1e-3,
                             const std::function<void(TrainState&)>& prepare = {}) {
  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  TrainState state(*be, arena, shape);
  state.initialize(3);
  if (prepare) prepare(state);
  StepsResult result;
  HostTensors data;
  for (int i = 0; i < steps; ++i) {
    const Tensor tokens = data.tokens({shape.tokens_per_step() + 1}, shape.model.vocab_size);
    const std::span<const int32_t> all(tokens.as<int32_t>(), static_cast<size_t>(tokens.numel()));
    state.step({.tokens = all.first(all.size() - 1), .targets = all.last(all.size() - 1)},
               shape.tokens_per_step(), kTestOptimizer, learning_rate, i + 1);
    const TrainState::StepResult r = state.finish_step();
    result.losses.push_back(r.loss);
    result.grad_norms.push_back(r.grad_norm);
    if (i == 0) result.first_gradients = on_host(state.stream(), state.grads(), shape.model, make);
  }
  result.weights = masters_on_host(state, make);
  return result;
}

inline void expect_same_bits(const StepsResult& a, const StepsResult& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.grad_norms, b.grad_norms);
  for (size_t i = 0; i < a.weights.size(); ++i)
    EXPECT_EQ(std::memcmp(a.weights[i].tensor.data, b.weights[i].tensor.data, a.weights[i].tensor.bytes()), 0)
        << a.weights[i].name;
}

// A step, an evaluation, a sample and a checkpoint take exactly the memory that a walk over an empty arena
// found.
inline void expect_ledger_is_plan(Backend& be, const RunShape& shape, const StepAxes& axes = {}) {
  const MemoryLedger plan = plan_memory(shape, be.traits());
  Arena arena = make_arena(be.traits());
  arena.reserve(plan.peak_bytes());
  const int64_t reserved = arena.reserved_bytes();
  TrainState state(be, arena, shape, axes);
  state.initialize(5);
  const int64_t T = shape.sequence_length;
  const std::vector<int32_t> tokens(static_cast<size_t>(shape.sequences_per_rank() * T), 1);
  const std::vector<int32_t> prompt(static_cast<size_t>(shape.session().longest_sample()), 1);
  state.step({.tokens = tokens, .targets = tokens}, shape.tokens_per_step(), kTestOptimizer, 1e-3, 1);
  state.finish_step();
  const auto batch = std::span(tokens).first(static_cast<size_t>(shape.micro_batch * T));
  state.session().evaluate({.tokens = batch, .targets = batch}, shape.micro_batch);
  Decoder(state.session(), {.capacity = std::ssize(prompt)}).start(0, prompt, 0);
  for (const std::string& name : state.store().kept().names())
    for (size_t b = 0; b < state.store().layout().buckets.size(); ++b)
      state.store().with_whole(name, b, [](const ParamReader&) {});
  EXPECT_EQ(arena.ledger().peak_bytes(), plan.peak_bytes());
  EXPECT_EQ(arena.ledger().at_peak(), plan.at_peak());
  EXPECT_EQ(arena.ledger().peak_of_each(), plan.peak_of_each());
  EXPECT_EQ(arena.ledger().peak_name(), plan.peak_name());
  EXPECT_EQ(arena.reserved_bytes(), reserved) << "the step reached the driver";
}

inline void expect_plan_is_the_step(const DeviceTraits& device, const RunShape& shape) {
  expect_ledger_is_plan(*make_backend(device), shape);
}

}  // namespace tessera::testing

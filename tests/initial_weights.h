// The initial weights of a training state on any device: those that the host draws, to the bit.
#pragma once

#include <map>

#include "model/init.h"
#include "tests/train_steps.h"

namespace tessera::testing {

inline void expect_initial_weights(const DeviceTraits& device, DType dtype) {
  RunShape shape{.model = {.vocab_size = 61, .context = 40, .layers = 2, .heads = 2, .channels = 48},
                 .micro_batch = 1,
                 .micro_steps = 1,
                 .sequence_length = 8,
                 .dtype = dtype};
  shape.model.tied = false;
  constexpr uint64_t kSeed = 7;
  std::map<std::string, std::vector<float>> wanted;
  init_weights(shape.model, kSeed, {.values = [&](const ParamPlace& place, const Tensor& values) {
                 wanted[place.info.name] = {floats(values).begin(), floats(values).end()};
               }});
  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  arena.reserve(plan_memory(shape, device).peak_bytes());
  TrainState state(*be, arena, shape);
  state.initialize(kSeed + 1);
  state.initialize(kSeed);
  const auto on_host = [&](const Tensor& tensor) {
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    state.stream().run(Copy{tensor, {values.data(), DType::kF32, tensor.shape, Device::kCpu}});
    state.stream().synchronize();
    return values;
  };
  HostTensors make;
  for (const auto& [name, master] : masters_on_host(state, make))
    EXPECT_EQ(std::vector(floats(master).begin(), floats(master).end()), wanted.at(name)) << name;
  for (const ParamPlace& place : state.store().layout().places) {
    std::vector<float> rounded = wanted.at(place.info.name);
    for (float& value : rounded)
      if (dtype == DType::kBF16) value = static_cast<float>(nearest_bf16(value));
    EXPECT_EQ(on_host(state.store().weight(place)), rounded) << place.info.name;
  }
  // Adapters alone: the rest is left to be loaded.
  shape.model.lora = {.rank = 2, .alpha = 4};
  int64_t adapters = 0;
  init_weights(shape.model, kSeed,
               {.values =
                    [&](const ParamPlace& place, const Tensor&) {
                      EXPECT_NE(place.info.adapter, AdapterMatrix::kNone) << place.info.name;
                      ++adapters;
                    }},
               InitialOf::kAdapters);
  EXPECT_GT(adapters, 0);
}

}  // namespace tessera::testing

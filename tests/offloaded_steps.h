// Training steps of which activations or weights lie in host memory, on any device.
#pragma once

#include "tests/block_patterns.h"
#include "tests/recorded_steps.h"

namespace tessera::testing {

// All that changes what a micro-step runs, with blocks that are copied out and blocks that are not
inline std::vector<NamedShape> offloaded_shapes(DType dtype) {
  std::vector<NamedShape> all = recorded_shapes(dtype);
  for (auto& [name, shape] : all) {
    shape.model.layers = 5;
    if (shape.keep == Keep::nothing()) shape.keep = kKeepOutputs;
  }
  for (const char* name : {"three micro-steps", "qwen3"})
    for (const Keep keep : {Keep{Recomputed::kNorms}, Keep{Recomputed::kAttention, Recomputed::kMlp},
                            kKeepAttention, kKeepOutputs}) {
      all.push_back(*std::ranges::find(all, std::string_view(name), &NamedShape::name));
      all.back().shape.keep = keep;
    }
  return all;
}

// Five blocks that keep different things, of which the activations of 1 to 5 are offloaded: with several
// micro-steps, gated MLPs, dropout, adapters, chunks
inline std::vector<NamedShape> shapes_by_block(DType dtype) {
  std::vector<NamedShape> all;
  size_t i = 0;
  for (const NamedShape& named : recorded_shapes(dtype)) {
    const std::string_view name = named.name;
    if (name != "three micro-steps" && name != "qwen3" && name != "dropout" && name != "adapters" &&
        name != "MLPs in chunks")
      continue;
    const std::vector<ByBlock<Keep>> keeps = mixed_keeps();
    for (const size_t which : {i, i + 3}) {
      all.push_back(named);
      RunShape& shape = all.back().shape;
      shape.model.layers = 5, shape.keep = keeps[which % keeps.size()];
      shape.offload = {.activations = true, .blocks = static_cast<int64_t>(all.size() * 2 % 5) + 1};
    }
    ++i;
  }
  return all;
}

// As with blocks that all keep all, on the device
inline void expect_the_bits_of_kept_blocks(Backend& be, RunShape shape) {
  SCOPED_TRACE(text_of(shape.keep) + ", " + text_of(shape.offload));
  HostTensors make;
  shape.poison = Poison::kYes;
  const StepsResult by_block = varied_steps(be, shape, make);
  shape.keep = kKeepAll, shape.offload = {}, shape.poison = Poison::kNo;
  expect_same_bits(by_block, varied_steps(be, shape, make));
}

inline void expect_offload_changes_no_bit(Backend& be, RunShape shape, Poison poison,
                                          const Offload& offload = {.activations = true}) {
  SCOPED_TRACE(text_of(shape.keep) + ", " + text_of(offload));
  HostTensors make;
  const StepsResult expected = varied_steps(be, shape, make);
  shape.offload = offload, shape.poison = poison;
  expect_same_bits(varied_steps(be, shape, make), expected);
}

}  // namespace tessera::testing

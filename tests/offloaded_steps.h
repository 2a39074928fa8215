// Training steps of which activations or weights lie in host memory, on any device.
#pragma once

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

inline void expect_offload_changes_no_bit(Backend& be, RunShape shape, Poison poison,
                                          const Offload& offload = {.activations = true}) {
  SCOPED_TRACE(text_of(shape.keep) + ", " + text_of(offload));
  HostTensors make;
  const StepsResult expected = varied_steps(be, shape, make);
  shape.offload = offload, shape.poison = poison;
  expect_same_bits(varied_steps(be, shape, make), expected);
}

}  // namespace tessera::testing

// The GEMMs of a training step. The code of a step runs on a backend that records them, so the list is exact
// by construction.
#pragma once

#include <vector>

#include "kernels/gemm/gemm.h"
#include "train/session/run_shape.h"

namespace tessera {

struct StepGemm {
  GemmKey key;
  int64_t calls;  // in the last micro-batch of a step; 0: only the first micro-batch has it
};

// The GEMMs of linear layers and adapters, each once, in the order of their first use. Needs no device. A
// GEMM with an epilogue is in the list even if the library turns out to compute it in two passes.
std::vector<StepGemm> step_gemms(const RunShape& shape, const DeviceTraits& device);

}  // namespace tessera

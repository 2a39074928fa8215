// The GEMMs of a training step: the code of a step runs over a backend that writes them down, so
// the list is exact by construction.
#pragma once

#include <vector>

#include "kernels/gemm/gemm.h"
#include "train/session/run_shape.h"

namespace tessera {

struct StepGemm {
  GemmKey key;
  int64_t calls;  // in the last micro-batch of a step; 0: the first alone has it
};

// Those of linear layers and adapters, each once, in the order of their first use. Needs no device. A GEMM
// with an epilogue is listed even if the library turns out to compute it in two passes.
std::vector<StepGemm> step_gemms(const RunShape& shape, const DeviceTraits& device);

}  // namespace tessera

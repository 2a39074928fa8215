// Planned memory: the code of a step runs on an arena without memory, with a backend that does nothing. So a
// plan is exact by construction.
#pragma once

#include <string>

#include "kernels/base/ledger.h"
#include "train/session/run_shape.h"

namespace tessera {

struct MemoryPlan {
  MemoryLedger ledger;         // after all stages
  std::string peak_stage;      // when it peaks: "the setup", "a training step", "an evaluation", "a sample",
                               // "a checkpoint"
  int64_t host_bytes = 0;      // of what lies in host memory for the device
  std::string decode = {};     // Decoder::kernels_text() of a sample; "": there are none
  std::string attention = {};  // fallback_note() of a training step
};

// The plan of a run: a step, an evaluation, a sample and a checkpoint.
MemoryPlan plan_stages(const RunShape& shape, const DeviceTraits& device);
MemoryLedger plan_memory(const RunShape& shape, const DeviceTraits& device);

// The plan of a Session by itself: an evaluation and a sample, without gradients and optimizer.
MemoryPlan plan_session(const SessionShape& shape, const DeviceTraits& device);

}  // namespace tessera

// How long a training step takes: computed from its operations and collectives, without the device. It serves
// to choose between shapes of a run (fastest_shape.h), and --plan prints it.
//
// The code of a step runs with a backend and communicators that do nothing but report what they are asked
// for. An operation has two times: that of its bytes (op_cost.h) at the memory's speed, and that of its
// arithmetic at the speed of GEMMs or of attention. It takes the longer one plus 0.3 of the shorter one.
// Collectives run one after another while operations run, as on the device. So do the copies of offloaded
// activations (in each direction) and weights. Where the step waits for one of these, so does the estimate.
#pragma once

#include "train/session/run_shape.h"

namespace tessera {

// The speeds that a card reaches within a step, not those of its data sheet
struct DeviceSpeed {
  int arch;                          // compute capability times ten; 0: a CPU; the speeds are then those of
                                     // one thread
  const char* card;                  // the card of this arch that the figures are of: "an H100"
  double gemm, fp8_gemm, attention;  // FLOP/s; attention's backward takes 1.2 times as long for each FLOP
  double memory;                     // bytes/s, of a pass over large tensors
  double bus;                        // bytes/s in each direction, to the host's memory
  double link;                       // bytes/s that a GPU sends to another GPU of its node
  double network;                    // bytes/s that a GPU sends to a GPU of another node, while all GPUs do
};
// The speeds of the newest known card that is not newer than `device`
DeviceSpeed speed_of(const DeviceTraits& device);

struct StepEstimate {
  double seconds = 0;
  double waits = 0;  // the part of these seconds that waits for other ranks
};
StepEstimate estimate_step(const RunShape& shape, const DeviceTraits& device);
// The tokens of all ranks in a second
double tokens_per_second(const RunShape& shape, const StepEstimate& step);
double tokens_per_second(const RunShape& shape, const DeviceTraits& device);

}  // namespace tessera

// How long a training step takes, computed from its operations and collectives, without the device. It serves
// to choose between shapes of a run (fastest_shape.h), and --plan prints it.
//
// The code of a step runs with a backend and a communicator that do nothing but tell what they are asked
// for. An operation has two times: its bytes (op_cost.h) at the memory's speed, and its arithmetic at the
// speed of GEMMs or of attention. It takes the longer one and 0.3 of the shorter one. Collectives run one
// after the other beside the operations, as on the device, and so do the copies of offloaded activations, in
// each direction, and weights; where the step waits for one, so does the estimate.
#pragma once

#include "train/session/run_shape.h"

namespace tessera {

// What a card reaches within a step, not its data sheet
struct DeviceSpeed {
  int arch;                          // compute capability times ten; 0: the CPU, a thread of it
  const char* card;                  // of this arch, whose figures these are: "an H100"
  double gemm, fp8_gemm, attention;  // FLOP/s; attention's backward takes 1.2 times as long a FLOP
  double memory;                     // bytes/s, of a pass over large tensors
  double bus;                        // bytes/s in each direction, to the host's memory
  double link;                       // bytes/s that a GPU sends to another of its node
  double network;                    // bytes/s that a GPU sends to one of another node, all at once
};
// Of the newest card known that is not newer than `device`
DeviceSpeed speed_of(const DeviceTraits& device);

struct StepEstimate {
  double seconds = 0;
  double waits = 0;  // of them: for other ranks
};
StepEstimate estimate_step(const RunShape& shape, const DeviceTraits& device);
double tokens_per_second(const RunShape& shape, const DeviceTraits& device);  // of all ranks

}  // namespace tessera

// Chooses the communicator of a device.
#pragma once

#include <memory>
#include <string>

#include "kernels/communicator.h"
#include "train/parallel/ranks.h"

namespace tessera {

// For tensors of `backend`, which must outlive it. All ranks call this together. A single rank needs neither
// NCCL nor Gloo. With several ranks on the CPU the process ignores SIGPIPE from then on, because Gloo writes
// to sockets whose other end may have closed. Error: the ranks cannot connect; two ranks use one GPU; there
// are several ranks, but no NCCL or Gloo.
std::unique_ptr<Communicator> make_communicator(Backend& backend, const Ranks& ranks);

// Whether several ranks can communicate in this build; if not, `why_not` says what to install. For CUDA it
// looks for NCCL's library.
bool can_communicate(Device device, std::string& why_not);

}  // namespace tessera

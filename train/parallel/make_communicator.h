// Chooses the communicator of a device.
#pragma once

#include <memory>
#include <string>

#include "kernels/communicator.h"
#include "train/parallel/ranks.h"

namespace tessera {

// For tensors of `backend`, which must outlive it. All ranks call this together. Error: they cannot connect;
// two ranks on one GPU; several ranks without NCCL, or without Gloo. A single rank needs neither. With
// several ranks on the CPU the process ignores SIGPIPE from then on: Gloo writes to sockets whose other end
// may be gone.
std::unique_ptr<Communicator> make_communicator(Backend& backend, const Ranks& ranks);

// Whether several ranks can communicate in this build; else `why_not` says what to install. On CUDA it looks
// for NCCL's library.
bool can_communicate(Device device, std::string& why_not);

}  // namespace tessera

// How a rank ends when another rank reports the error.
#pragma once

#include "kernels/base/process.h"

namespace tessera {

// The exit code of a rank that ends only because of an error that another rank or the launcher prints.
inline constexpr int kExitPeerFailed = 3;

// Thrown by ProcessGroup::join() if rank 0 ends the rendezvous and prints the error, what().
struct PeerFailed : PrintedElsewhere {
  explicit PeerFailed(const std::string& text) : PrintedElsewhere(text, kExitPeerFailed) {}
};

}  // namespace tessera

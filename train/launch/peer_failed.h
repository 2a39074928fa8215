// How a rank ends when another rank reports the error.
#pragma once

#include "kernels/base/check.h"

namespace tessera {

// The exit code of a rank that ends only because of an error that another rank, or the launcher, prints.
inline constexpr int kExitPeerFailed = 3;

// Thrown by ProcessGroup::join() where rank 0 ends the rendezvous and prints the error: print nothing, exit
// with kExitPeerFailed. what() is what rank 0 prints.
class PeerFailed : public Error {
 public:
  using Error::Error;
};

}  // namespace tessera

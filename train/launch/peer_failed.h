// How a rank ends when another rank reports the error.
#pragma once

#include "kernels/base/check.h"

namespace tessera {

// The exit code of a rank that ends only because of an error that another rank or the launcher prints.
inline constexpr int kExitPeerFailed = 3;

// Thrown by ProcessGroup::join() if rank 0 ends the rendezvous and prints the error. A program that catches
// it prints nothing and exits with kExitPeerFailed. what() is the text that rank 0 prints.
class PeerFailed : public Error {
 public:
  using Error::Error;
};

}  // namespace tessera

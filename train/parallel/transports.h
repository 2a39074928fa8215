// The communicators of several ranks. A build without one of the libraries has the same functions, which say
// what to install (no_gloo.cpp, no_nccl.cpp).
#pragma once

#include "kernels/communicator.h"
#include "train/parallel/ranks.h"

namespace tessera {

bool gloo_available(std::string& why_not);
std::unique_ptr<Communicator> make_gloo_communicator(const Ranks& ranks);

bool nccl_available(std::string& why_not);
std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const Ranks& ranks);

}  // namespace tessera

// The communicators of several ranks. In a build without one of the libraries, the functions exist, too, and
// say what to install (no_gloo.cpp, no_nccl.cpp).
#pragma once

#include "kernels/communicator.h"
#include "train/parallel/ranks.h"

namespace tessera {

bool gloo_available(std::string& why_not);
std::unique_ptr<Communicator> make_gloo_communicator(const Ranks& ranks);

bool nccl_available(std::string& why_not);
std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const Ranks& ranks);

}  // namespace tessera

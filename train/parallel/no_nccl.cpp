// In a build without NCCL: errors that say what to install.
#include "kernels/base/check.h"
#include "train/parallel/transports.h"

namespace tessera {

bool nccl_available(std::string& why_not) {
  why_not = "this program was built without NCCL. Install libnccl-dev, run cmake and build again";
  return false;
}

std::unique_ptr<Communicator> make_nccl_communicator(Backend&, const Ranks& ranks) {
  std::string why_not;
  nccl_available(why_not);
  fail("{} ranks on CUDA communicate through NCCL, but {}", ranks.size, why_not);
}

}  // namespace tessera

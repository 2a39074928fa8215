// In a build without Gloo: errors that say what to install.
#include "kernels/base/check.h"
#include "train/parallel/transports.h"

namespace tessera {

bool gloo_available(std::string& why_not) {
  why_not = "this program was built without Gloo. Install libgloo-dev, run cmake and build again";
  return false;
}

std::unique_ptr<Communicator> make_gloo_communicator(const Ranks& ranks) {
  std::string why_not;
  gloo_available(why_not);
  fail("{} ranks on the CPU communicate through Gloo, but {}", ranks.size, why_not);
}

}  // namespace tessera

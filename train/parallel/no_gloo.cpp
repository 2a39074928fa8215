// What a build without Gloo answers.
#include "kernels/base/check.h"
#include "train/parallel/transports.h"

namespace tessera {

bool gloo_available(std::string& why_not) {
  why_not = "this program was built without Gloo; install libgloo-dev and run cmake again";
  return false;
}

std::unique_ptr<Communicator> make_gloo_communicator(const Ranks& ranks) {
  std::string why_not;
  gloo_available(why_not);
  fail("{} ranks on the CPU communicate through Gloo, but {}", ranks.size, why_not);
}

}  // namespace tessera

// The trace of a build without CUPTI's header
#include "kernels/base/check.h"
#include "kernels/device_trace.h"

namespace tessera {

std::unique_ptr<DeviceTrace> start_cuda_trace() {
  fail(
      "a trace needs NVIDIA's CUPTI, whose header cupti.h was not there when this program was built. Install "
      "NVIDIA's package cuda-cupti-dev and build again");
}

}  // namespace tessera

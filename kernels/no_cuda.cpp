// The CUDA functions of a build without CUDA.
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/device_trace.h"
#include "kernels/timer.h"

namespace tessera {

int count_cuda_devices() { return 0; }

void use_cuda_device(int index) { fail("GPU {} cannot be used: this program was built without CUDA", index); }

bool find_cuda_device(DeviceTraits&, std::string& why_not) {
  why_not = "this program was built without CUDA";
  return false;
}

std::unique_ptr<Timer> make_cuda_timer(CUstream_st*) { return nullptr; }  // no backend has a stream

std::unique_ptr<DeviceTrace> start_cuda_trace() { fail("this program was built without CUDA"); }

std::unique_ptr<Backend> make_cuda_backend() {
  fail(
      "this program was built without CUDA. Configure with -DTESSERA_CUDA=ON on a machine with the CUDA "
      "Toolkit");
}

}  // namespace tessera

// What an operation may rely on: facts of the device that it runs on, or is planned for.
#pragma once

#include <string>

#include "kernels/base/tensor.h"
#include "kernels/base/threads.h"

namespace tessera {

// {} is the CPU.
struct DeviceTraits {
  Device device = Device::kCpu;
  int arch = 0;  // CUDA compute capability times ten: 80, 90
  std::string name = "CPU";
  int threads = cpu_threads();  // on which the CPU's operations run
  bool own_gemms = true;        // this build has our GEMMs (kernels/gemm/sm90), for devices that can run them

  bool runs_own_gemms() const { return device == Device::kCuda && arch == 90 && own_gemms; }
};

}  // namespace tessera

#include "train/session/device.h"

#include <cmath>
#include <cstdlib>

#include "kernels/base/check.h"
#include "kernels/gemm/peak.h"

namespace tessera {

DeviceChoice choose_device(DeviceRequest requested, int local_rank) {
  DeviceChoice choice;
  if (requested == DeviceRequest::kCpu) return choice;
  // Under some launchers every process sees only its own GPU.
  if (const int gpus = count_cuda_devices(); gpus > 1) {
    check(local_rank < gpus,
          "process {} of this machine has no GPU: {} are visible. Start one process per GPU, or check "
          "CUDA_VISIBLE_DEVICES",
          local_rank, gpus);
    use_cuda_device(local_rank);
  }
  DeviceTraits cuda;
  std::string why_not;
  if (find_cuda_device(cuda, why_not)) {
    choice.traits = cuda;
  } else {
    check(requested != DeviceRequest::kCuda, "device is cuda, but {}. Set device to auto or cpu", why_not);
    choice.notice = fmt::format("training on the CPU: {}", why_not);
  }
  return choice;
}

double gemm_peak(Backend& be, bool fp8) {
  const char* given = be.device() == Device::kCpu ? std::getenv(kCpuPeakVariable) : nullptr;
  if (given) {
    char* end = nullptr;
    const double tflops = std::strtod(given, &end);
    check(*end == 0 && std::isfinite(tflops) && tflops > 0,
          "{} is {:?}, expected TFLOP/s as a number above 0. Unset it to measure the GEMM peak",
          kCpuPeakVariable, given);
    return 1e12 * tflops;
  }
  Arena arena = make_arena(be.traits());
  const Stream stream(be, arena.alloc(MemoryTag::kWorkspace, "kernel workspace", DType::kF32,
                                      {workspace_bytes(be.device(), 1, 1, 1) / 4}));
  return measure_gemm_flops(stream, arena, fp8);
}

std::unique_ptr<Backend> make_backend(const DeviceTraits& device) {
  return device.device == Device::kCuda ? make_cuda_backend() : make_cpu_backend();
}

Arena make_arena(const DeviceTraits& device) {
  return device.device == Device::kCuda ? Arena::cuda() : Arena::host();
}

}  // namespace tessera

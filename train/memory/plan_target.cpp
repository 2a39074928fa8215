#include "train/memory/plan_target.h"

#include "kernels/attention/family.h"
#include "kernels/base/check.h"
#include "kernels/base/threads.h"

namespace tessera {
namespace {

constexpr int kDefaultArch = attention::kHopper;  // of a GPU that is not present, where --arch is not given
constexpr int kOldestArch = attention::kLowestArch, kNewestArch = 999;

PlanTarget absent_gpu(int arch, const std::string& assumed) {
  return {.device = {.device = Device::kCuda, .arch = arch, .name = "a GPU that is not present"},
          .limit = {},
          .notice = assumed};
}

}  // namespace

int64_t parse_device_memory(const std::string& size) {
  try {
    return parse_bytes(size);
  } catch (const Error& error) {
    fail("--device-memory: {}", error.what());
  }
}

void check_plan_options(const std::string& device_memory, int arch) {
  if (!device_memory.empty()) parse_device_memory(device_memory);
  check(
      arch == 0 || (kOldestArch <= arch && arch <= kNewestArch),
      "--arch must be the compute capability of a GPU times ten, at least {}, such as 80, 86 or 90, found {}",
      kOldestArch, arch);
}

PlanTarget choose_plan_target(DeviceRequest requested, int64_t ranks, const std::string& device_memory,
                              int arch) {
  const bool has_memory = !device_memory.empty();
  check_plan_options(device_memory, arch);
  check(arch == 0 || requested != DeviceRequest::kCpu,
        "--arch {} plans for a GPU, but device is cpu: remove one of them", arch);
  PlanTarget target;
  std::string why_not = "device=cpu";
  const bool present = requested != DeviceRequest::kCpu && find_cuda_device(target.device, why_not);
  if (arch != 0 && !(present && target.device.arch == arch)) {
    target = absent_gpu(arch, "no such GPU is present: the compute capability is that of --arch");
  } else if (!present && requested != DeviceRequest::kCpu &&
             (has_memory || requested == DeviceRequest::kCuda)) {
    target = absent_gpu(kDefaultArch,
                        fmt::format("{}, so compute capability {}.{} is assumed; --arch 80 names another",
                                    why_not, kDefaultArch / 10, kDefaultArch % 10));
  } else {
    target.limit = present_memory(target.device.device, ranks);
    target.device.threads = cpu_threads(ranks);  // as the launcher starts them
    if (!present && requested != DeviceRequest::kCpu)
      target.notice =
          fmt::format("planned for the CPU, as {}; --device-memory 80GiB plans for a GPU", why_not);
  }
  if (has_memory)
    target.limit = given_memory(target.device.device, parse_device_memory(device_memory), ranks);
  target.limit = target.limit.shared_by(target.device.device, ranks);
  return target;
}

}  // namespace tessera

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

int64_t parse_size(const char* option, const std::string& size) {
  try {
    return parse_bytes(size);
  } catch (const Error& error) {
    fail("{}: {}", option, error.what());
  }
}

}  // namespace

int64_t parse_device_memory(const std::string& size) { return parse_size("--device-memory", size); }

void check_plan_options(const TargetOptions& options) {
  if (!options.device_memory.empty()) parse_device_memory(options.device_memory);
  if (!options.host_memory.empty()) parse_size("--host-memory", options.host_memory);
  const int arch = options.arch;
  check(
      arch == 0 || (kOldestArch <= arch && arch <= kNewestArch),
      "--arch must be the compute capability of a GPU times ten, at least {}, such as 80, 86 or 90, found {}",
      kOldestArch, arch);
}

PlanTarget choose_plan_target(DeviceRequest requested, int64_t ranks, const TargetOptions& options) {
  const bool has_memory = !options.device_memory.empty();
  const int arch = options.arch;
  check_plan_options(options);
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
    target.limit = given_memory(target.device.device, parse_device_memory(options.device_memory), ranks);
  if (!options.host_memory.empty()) {
    check(
        target.device.device == Device::kCuda,
        "--host-memory {} is what the host has for GPUs, and this plan is for the CPU, as {}: remove it, or "
        "plan for a GPU with --device-memory 80GiB",
        options.host_memory, why_not);
    target.limit.pinned = parse_size("--host-memory", options.host_memory) / ranks;
    target.limit.pinned_given = true;
  }
  target.limit = target.limit.shared_by(target.device.device, ranks);
  return target;
}

}  // namespace tessera

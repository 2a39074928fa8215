#include "train/run/start_ranks.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "train/launch/launcher.h"
#include "train/parallel/make_communicator.h"

namespace tessera {
namespace {

int count_gpus(DeviceRequest device) { return device == DeviceRequest::kCpu ? 0 : count_cuda_devices(); }

}  // namespace

int64_t default_ranks(DeviceRequest device) { return std::max(1, count_gpus(device)); }

void check_asked(DeviceRequest device, const AskedRanks& asked) {
  check(asked.gpus == 0 || device != DeviceRequest::kCpu,
        "--gpus {0} was asked for, but device is cpu. Remove one of the two, or start ranks on the CPU with "
        "--ranks {0}",
        asked.gpus);
}

World start_ranks(DeviceRequest device, const AskedRanks& asked, char** argv) {
  check_asked(device, asked);
  const char* option = asked.gpus > 0 ? "--gpus" : "--ranks";
  const int gpus = count_gpus(device);
  std::string why_not;
  if (asked.gpus > 0 && gpus == 0) {
    DeviceTraits none;
    find_cuda_device(none, why_not);
    fail(
        "--gpus {0} was asked for, but {1}. Remove --gpus to use the CPU with one rank, or start {0} "
        "ranks there with --ranks {0} {2}",
        asked.gpus, why_not, asked.on_cpu);
  }
  if (const std::optional<World> world = world_of_environment()) {
    check(asked.count() == 0 || asked.count() == world->size,
          "{} {} was asked for, but {} has started {} ranks. Remove {} from the command", option,
          asked.count(), world->from, world->size, option);
    return *world;
  }
  check(
      gpus == 0 || asked.count() <= gpus,
      "{} {} was asked for, but {} {} visible, and each rank needs its own. Ask for fewer, make more visible "
      "with CUDA_VISIBLE_DEVICES, or use the CPU with --ranks {} {}",
      option, asked.count(), gpus, gpus == 1 ? "GPU is" : "GPUs are", asked.count(), asked.on_cpu);
  const Device kind = gpus > 0 ? Device::kCuda : Device::kCpu;
  const int64_t ranks = asked.count() > 0 ? asked.count() : default_ranks(device);
  if (ranks == 1) return {};
  check(can_communicate(kind, why_not), "{} ranks cannot exchange gradients: {}. {} 1 does not need it",
        ranks, why_not, option);
  std::exit(launch(static_cast<int>(ranks), argv));
}

}  // namespace tessera

#include "train/parallel/start.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "train/parallel/communicator.h"
#include "train/parallel/launch.h"

namespace tessera {
namespace {

int count_gpus(const std::string& device) { return device == "cpu" ? 0 : count_cuda_devices(); }

}  // namespace

int64_t default_ranks(const std::string& device) { return std::max(1, count_gpus(device)); }

World start_ranks(const std::string& device, int64_t asked, char** argv) {
  if (const std::optional<World> world = world_of_environment()) {
    check(asked == 0 || asked == world->size,
          "--ranks {} was asked for, but {} has started {}: leave --ranks out there", asked, world->from,
          world->size);
    return *world;
  }
  const int gpus = count_gpus(device);
  check(
      gpus == 0 || asked <= gpus,
      "--ranks {} was asked for, but {} GPUs are visible: one process a GPU is the most. Ask for fewer, make "
      "more visible with CUDA_VISIBLE_DEVICES, or train on the CPU with --set device=cpu",
      asked, gpus);
  std::string why_not;
  const Device kind = gpus > 0 ? Device::kCuda : Device::kCpu;
  const int64_t ranks = asked > 0 ? asked : default_ranks(device);
  if (ranks == 1) return {};
  check(can_communicate(kind, why_not), "{} ranks cannot exchange gradients: {}; --ranks 1 does without",
        ranks, why_not);
  std::exit(launch(static_cast<int>(ranks), argv));
}

}  // namespace tessera

#include "train/parallel/start.h"

#include <cstdlib>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "train/parallel/communicator.h"
#include "train/parallel/launch.h"

namespace tessera {

World start_ranks(const std::string& device, int64_t asked, char** argv) {
  if (const std::optional<World> world = world_of_environment()) {
    check(asked == 0 || asked == world->size,
          "--ranks {} was asked for, but {} has started {}: leave --ranks out there", asked, world->from,
          world->size);
    return *world;
  }
  const int gpus = device == "cpu" ? 0 : count_cuda_devices();
  check(gpus == 0 || asked <= gpus,
        "--ranks {} was asked for, but {} GPUs are visible: one process a GPU is the most. Ask for fewer, or "
        "make "
        "more visible with CUDA_VISIBLE_DEVICES",
        asked, gpus);
  std::string why_not;
  const Device kind = gpus > 0 ? Device::kCuda : Device::kCpu;
  const int64_t ranks = asked > 0 ? asked : gpus > 1 ? gpus : 1;
  if (ranks == 1) return {};
  check(can_communicate(kind, why_not), "{} ranks cannot exchange gradients: {}", ranks, why_not);
  std::exit(launch(static_cast<int>(ranks), argv));
}

}  // namespace tessera

#include "train/run/trainer.h"

#include <optional>

#include "train/run/open_run.h"
#include "train/run/train_loop.h"

namespace tessera {

void train(const Config& config, const TrainerOptions& options, const World& world) {
  RankGroup ranks(world, config);
  std::optional<OpenRun> run;  // outlives guard(): see RankGroup
  ranks.guard([&] {
    run.emplace(config, options, ranks);
    TrainLoop(*run).run();
  });
}

}  // namespace tessera

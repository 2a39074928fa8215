// What a configuration says, as the values that a model, an optimizer and a run are built from.
#pragma once

#include "model/optimizer.h"
#include "train/config/config.h"
#include "train/session/memory_limit.h"
#include "train/session/run_shape.h"

namespace tessera {

ModelConfig model_config(const Config& config);
OptimizerConfig optimizer_config(const Config& config);

// The shape of the run that `config` asks for. With micro_batch 0 in the configuration, `micro_batch` if
// positive (that of a checkpoint, if the ranks can take it), else the largest that fits `limit` by plan (a
// limit that is not known: 1), up to where more does not make a step faster. Without `limit`, the present
// device's. Error: precision that the device lacks, and what choose_attention refuses.
RunShape run_shape(const Config& config, const DeviceTraits& device, int64_t micro_batch = 0);
RunShape run_shape(const Config& config, const DeviceTraits& device, int64_t micro_batch,
                   const MemoryLimit& limit);

}  // namespace tessera

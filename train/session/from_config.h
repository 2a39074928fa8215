// From a configuration to the settings of a model, an optimizer and a run.
#pragma once

#include "model/optimizer.h"
#include "train/config/config.h"
#include "train/session/memory_limit.h"
#include "train/session/run_shape.h"

namespace tessera {

ModelConfig model_config(const Config& config);
OptimizerConfig optimizer_config(const Config& config);

// The shape of a run of `config`. A train.micro_batch of auto becomes, in this order: `micro_batch`, if
// it is positive and the ranks can use it (a checkpoint's); 1, if the limit is not known; the largest
// that fits `limit` by plan and still makes a step faster. Without `limit`, that of the present device. A
// train.classifier_chunk of auto becomes all rows, or for a large vocabulary as many as have 1 GiB of logits.
// Error: a precision that the device does not support, and the errors of choose_attention().
RunShape run_shape(const Config& config, const DeviceTraits& device, int64_t micro_batch = 0);
RunShape run_shape(const Config& config, const DeviceTraits& device, int64_t micro_batch,
                   const MemoryLimit& limit);

// The shape of a session that reads texts of up to `longest` tokens one at a time, and trains nothing. Error:
// as above.
SessionShape inference_shape(const ModelConfig& model, const DeviceTraits& device, Precision precision,
                             AttentionKind attention, int64_t longest);

}  // namespace tessera

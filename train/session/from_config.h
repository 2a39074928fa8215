// From a configuration to the settings of a model, an optimizer and a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/formats/folder.h"
#include "model/optimizer.h"
#include "train/config/config.h"
#include "train/session/memory_limit.h"
#include "train/session/run_shape.h"

namespace tessera {

ModelConfig model_config(const Config& config);
FolderOptions folder_options(const Config& config);  // of the folder that train.init_from names
OptimizerConfig optimizer_config(const Config& config);

// What a run found for keys that are auto before it was stopped. The resumed run uses the same, and so
// computes the same bits.
struct EarlierChoices {
  int64_t micro_batch = 0;  // 0: none, or not one that the ranks can use
  std::optional<Shard> shard = {};
  int64_t replicas = 0;  // 0: none
  std::optional<int64_t> mlp_chunk = {};
};
// The shape of a run of `config`. The keys that are auto (train.micro_batch, train.recompute,
// train.mlp_chunk, parallel.shard, parallel.replicas and memory.offload) are found by fastest_shape(), for
// `limit`, or for the present device if there is none. A train.classifier_chunk of auto means all rows; for a
// large vocabulary, as many rows as have 1 GiB of logits. Error: a precision that the device does not
// support, and the errors of choose_attention().
RunShape run_shape(const Config& config, const DeviceTraits& device);
RunShape run_shape(const Config& config, const DeviceTraits& device, const MemoryLimit& limit,
                   const EarlierChoices& earlier = {});

// Whether a key besides train.micro_batch is found by fastest_shape()
bool finds_shape(const Config& config);
// The values found for the keys that are auto in `config`, as key=value
std::vector<std::string> found_for_auto(const Config& config, const RunShape& shape);

// The shape of a session that reads texts of up to `longest` tokens one at a time, and trains nothing. Error:
// as above.
SessionShape inference_shape(const ModelConfig& model, const DeviceTraits& device, Precision precision,
                             AttentionKind attention, int64_t longest);

}  // namespace tessera

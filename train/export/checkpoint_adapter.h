// The adapter of a checkpoint of a run with train.lora. It can be added to other weights than those that the
// checkpoint has it merged with.
#pragma once

#include <filesystem>

#include "model/formats/peft.h"
#include "model/formats/tensor_files.h"
#include "model/params.h"

namespace tessera {

class CheckpointAdapter {
 public:
  // `model`: the model without adapters. Error: the checkpoint has no adapter, or one for other layers
  CheckpointAdapter(const std::filesystem::path& checkpoint, const ModelConfig& model);
  // `weight`: a weight of the model, fp32 on the host
  void add_to(const ParamInfo& weight, const Tensor& values) const;

 private:
  TensorFiles files_;
  ModelConfig model_;  // with adapters
  ParamLayout layout_;
};

// Which weights the adapter of a checkpoint was trained on; without an adapter both are empty
AdapterBase adapter_base_of(const std::filesystem::path& checkpoint);

}  // namespace tessera

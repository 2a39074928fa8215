// What a run says of the checkpoints that it writes.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/base/tensor.h"
#include "train/run/checkpoint_files.h"
#include "train/run/disks.h"

namespace tessera {

struct CheckpointOptions {
  std::string config = "";                    // the text of config.yaml; empty: none
  DType dtype = DType::kF32;                  // of the weights; equal on all ranks
  CopiedFiles copied = {};                    // files of the folder that the run started from
  const nlohmann::json* token_ids = nullptr;  // of its config.json; null: none
  std::string base = "";                      // train.init_from, which adapter/ names
  bool base_is_kept = false;              // it has the form of train.lora.base already: nothing is rounded
  int64_t file_bytes = int64_t{8} << 30;  // of the largest file of tensors, but for one large tensor
  bool any_values = false;  // also NaN, and then in fp32 and without adapter/: for a run to look at alone
  bool replaces = true;     // a checkpoint of the same step that is there
  // Before each write and each removal, on the thread that does it: RunFolder::check_held()
  std::function<void()> check_folder = [] {};
  // Several ranks: waits for all of them. Called once, by each.
  std::function<void()> barrier = [] {};
  Disks disks = {};        // where the ranks write
  Exchange exchange = {};  // for several disks
};

}  // namespace tessera

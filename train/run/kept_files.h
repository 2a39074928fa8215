// What belongs to the weights of a run and is no part of the model: copied into every checkpoint.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/run/checkpoint_files.h"
#include "train/run/run_data.h"

namespace tessera {

struct KeptFiles {
  CopiedFiles copied;  // on ranks that lead a disk
  nlohmann::json token_ids = nlohmann::json::object();

  // Reads them from a checkpoint, or from the folder that the run starts from
  void take_over(const std::filesystem::path& folder);
  // A checkpoint has the tokenizer of the data, unless the weights that the run started from had one. With
  // `chat` also the data's chat template: see keep_chat(), whose notices it returns.
  std::vector<std::string> keep_tokenizer(const RunData& data, bool chat);
};

}  // namespace tessera

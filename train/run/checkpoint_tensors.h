// Which values of the parameters a checkpoint has, and in which files.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/run/checkpoint_options.h"
#include "train/session/train_state.h"

namespace tessera {

inline constexpr const char* kMasters = "master.";  // before the names of parameters in the file

// Values of some parameters, which stand side by side in a file
struct Section {
  std::string prefix;  // of the parameters' names in the file
  std::string values;  // by its name in the ParamStore
  std::function<bool(const RunShape& shape, const ParamInfo& info)> has = {};  // which parameters
};
// What a file has of a section
struct SectionOfBucket {
  Section section;
  size_t bucket;
};
// A file, written by one rank
struct TensorFile {
  std::string name;
  DType dtype;
  std::vector<SectionOfBucket> parts = {};  // in their order
  int64_t rank = 0;

  std::vector<std::string> prefixes() const;
  bool has(const RunShape& shape, const std::string& prefix, const ParamPlace& place) const;
};

// Master weights are saved if the weights of the checkpoint are bf16, and always for adapters, which those
// weights are not.
std::vector<Section> optimizer_sections(const RunShape& shape, DType weights);
// All that a checkpoint holds of the parameters, in the order in which it is written. All ranks walk it: each
// writes its files, and sends the others its parts of theirs.
std::vector<TensorFile> tensor_files(TrainState& state, const CheckpointOptions& options);
int64_t bytes_of(TrainState& state, const std::vector<TensorFile>& files);
// Which file has which tensor, where a stem has several files
nlohmann::ordered_json index_of(TrainState& state, const std::vector<TensorFile>& files, const char* stem);

}  // namespace tessera

// Matrices that a folder stores in NF4 as train.lora.base=nf4 or nf4_double does: a run takes their bytes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/formats/weights.h"
#include "train/config/config.h"
#include "train/session/train_state.h"

namespace tessera {

bool is_nf4(BaseForm base);  // nf4 or nf4_double

// What a run that stores its base in one form finds in a folder, of all matrices that it stores so
struct Nf4Base {
  int64_t kept = 0;        // their bytes are
  int64_t others = 0;      // in other numbers than NF4
  std::string difference;  // of the first one in NF4 that is stored otherwise; empty: there is none
  bool is_kept() const { return difference.empty() && others == 0; }
};
// The same of an opened folder, for nf4 and for nf4_double
struct Nf4Folder {
  Nf4Base nf4, nf4_double;
  bool is_double() const { return nf4_double.kept > 0 && nf4_double.difference.empty(); }
};
Nf4Folder compare_nf4_base(const WeightsFolder& weights, const ModelConfig& model, bool experts_only);

// The form in which `folder`, the train.init_from of adapters, is stored, beside that in which the run stores
// its base. Error: as compare_with_nf4().
struct ComparedBase {
  bool is_kept = false;  // the base has the values of the folder
  std::vector<std::string> notices = {};
};
ComparedBase compare_forms(const std::filesystem::path& folder, const Config& config);

// What a run that stores the weights of a folder as `key` says tells about it, if it is in NF4: a notice
// where its values are widened. Error: its scales would be rounded again.
struct StoredFolder {
  std::string folder;
  const char* key;
  BaseForm form;                    // the value of `key`
  const Nf4Folder* kept = nullptr;  // null: the run takes its values, not its bytes
};
std::vector<std::string> compare_with_nf4(const StoredFolder& of);

// Writes the bytes of what is kept to a run that stores its base in NF4.
void load_nf4_base(const std::filesystem::path& folder, TrainState& state, const FolderOptions& options);

}  // namespace tessera

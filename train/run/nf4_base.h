// Matrices that a folder stores in NF4 as train.lora.base=nf4 or nf4_double does: a run takes their bytes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/formats/folder.h"
#include "train/config/config.h"
#include "train/session/train_state.h"

namespace tessera {

bool is_nf4(LoraBase base);  // nf4 or nf4_double

// What a run that stores `base` finds in a folder, of all matrices that it stores so
struct Nf4Base {
  int64_t kept = 0;        // their bytes are
  int64_t others = 0;      // in other numbers than NF4
  std::string difference;  // of the first one in NF4 that is stored otherwise; empty: there is none
  bool is_kept() const { return difference.empty() && others == 0; }
};
struct BaseForm {
  LoraBase form;
  bool experts_only;
};
Nf4Base compare_nf4_base(const std::filesystem::path& folder, const ModelConfig& model, const BaseForm& base,
                         const FolderOptions& options);

// The form in which `folder`, the train.init_from of adapters, is stored, beside that in which the run stores
// its base. Error: the run would round scales of NF4 again.
struct BaseForms {
  bool is_kept = false;  // the base has the values of the folder
  std::vector<std::string> notices = {};
};
BaseForms compare_forms(const std::filesystem::path& folder, const Config& config);

// The notice about another folder that is stored in NF4, if it is one and its values are widened. Error: its
// scales would be rounded again.
struct StoredFolder {
  const std::string& folder;
  const char* key;  // that has it stored so
  bool scales_in_8_bits, widened;
};
std::vector<std::string> compare_with_nf4(const StoredFolder& of);

// Writes the bytes of what is kept to a run that stores its base in NF4.
void load_nf4_base(const std::filesystem::path& folder, TrainState& state, const FolderOptions& options);

}  // namespace tessera

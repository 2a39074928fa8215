// Matrices that a folder stores in NF4 as train.lora.base=nf4 or nf4_double does: a run takes their bytes.
#pragma once

#include <filesystem>
#include <string>

#include "model/formats/folder.h"
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

// Writes the bytes of what is kept to a run that stores its base in NF4.
void load_nf4_base(const std::filesystem::path& folder, TrainState& state, const FolderOptions& options);

}  // namespace tessera

// Whether the files of a checkpoint are as they were written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "kernels/base/file_checksums.h"

namespace tessera {

// Reads every file of a checkpoint and compares; where there are no checksums, looks at the structure alone.
std::vector<FileVerdict> verify_checkpoint(const std::filesystem::path& checkpoint);

enum class CheckpointPart : uint8_t { kAll, kWithoutTensors, kWeights };
// Returns false if the checkpoint has no checksums. Error: a file of this part is damaged; names it and the
// newest earlier checkpoint that is whole, with what to do.
bool check_undamaged(const std::filesystem::path& checkpoint, CheckpointPart part = CheckpointPart::kAll);

}  // namespace tessera

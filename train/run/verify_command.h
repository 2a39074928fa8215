// ./train --verify FOLDER: compares files with their checksums.
#pragma once

#include <filesystem>

namespace tessera {

// Reads every file of a checkpoint, of all checkpoints of a run, or of a folder of shards, and prints a line
// for each. Returns the program's exit code: 0, or 1 if a file is damaged. Error: the folder is of another
// kind.
int verify_command(const std::filesystem::path& folder);

}  // namespace tessera

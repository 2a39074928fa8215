// ./train --verify FOLDER: whether files are as they were written.
#pragma once

#include <filesystem>

namespace tessera {

// Reads every file of a checkpoint, of all checkpoints of a run, or of a folder of shards, and prints a line
// for each. Returns the program's exit code: 0, or 1 if a file is damaged. Error: a folder of none of these
// kinds.
int verify_command(const std::filesystem::path& folder);

}  // namespace tessera

// Finds configurations and other files that ship with the program.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// The folders of files that ship with the program, which may not exist: beside the program, one above, and
// ../share/tessera, where `cmake --install` puts them.
std::vector<std::filesystem::path> shipped_folders();
std::vector<std::filesystem::path> shipped_config_folders();  // the configs/ in them

inline constexpr const char* kRunConfig = "config.yaml";  // in the folder of a run

// Looks `name` up in the current folder, then, if it is a bare name, in `folders`; ".yaml" may be omitted. At
// last `name` may be the folder of a run. Error: a checkpoint; else every place that was tried, and the names
// of the configurations in `folders`.
std::filesystem::path find_config(
    const std::string& name, const std::vector<std::filesystem::path>& folders = shipped_config_folders());

}  // namespace tessera

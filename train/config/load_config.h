// A configuration from its file and from the command line.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "train/config/config.h"

namespace tessera {

// Reads a file, then applies overrides ("key=value", later ones win), takes the keys that describe the model
// from the folder that train.init_from names, and checks what spans several keys. With `resume`, the
// configuration need not agree with that folder, and the folder need not exist.
// Error: begins with file:line:column or "--set key=value", and says what was found and what is expected.
Config load_config(const std::filesystem::path& file, std::span<const std::string> overrides,
                   bool resume = false);

}  // namespace tessera

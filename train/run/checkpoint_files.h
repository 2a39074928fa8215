// The files of a checkpoint's folder, and checksums.json, which says what was written to the others.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/base/file_checksums.h"
#include "train/run/run_state.h"

namespace tessera {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kModelFile = "config.json";
inline constexpr const char* kConfigFile = "config.yaml";  // the run's configuration when it was written
inline constexpr const char* kChecksumsFile = "checksums.json";
inline constexpr std::array<std::string_view, 6> kCheckpointFiles{
    kWeightsFile, kOptimizerFile, kModelFile, kConfigFile, kStateFile, kChecksumsFile};

// The text of checksums.json.
std::string checksums_text(const FileChecksums& files);

// What the checksums.json of a checkpoint says; nothing for one of the first format, and for weights that
// another program wrote.
// Error: it is malformed, or it is missing and state.json says that there was one.
FileChecksums written_checksums(const std::filesystem::path& checkpoint);

}  // namespace tessera

// The files of a checkpoint's folder, and checksums.json, which has the checksums of the others.
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

// The checksums.json of a checkpoint; empty for a checkpoint of the first format and for weights that another
// program wrote. Error: it is malformed, or it is missing although state.json is of a format that has one.
FileChecksums written_checksums(const std::filesystem::path& checkpoint);

}  // namespace tessera

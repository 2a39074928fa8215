// The files of a checkpoint's folder, and checksums.json, which has the checksums of the others.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "data/chat/chat_form.h"
#include "kernels/base/file_checksums.h"
#include "train/run/run_state.h"

namespace tessera {

// Tensors are in STEM.safetensors, or in several files with the index STEM.safetensors.index.json.
inline constexpr const char* kWeightsStem = "model";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kModelFile = "config.json";
inline constexpr const char* kConfigFile = "config.yaml";  // the run's configuration when it was written
inline constexpr const char* kChecksumsFile = "checksums.json";
// Which machine wrote which file, if the files are on several disks
inline constexpr const char* kMachinesFile = "machines.json";
inline constexpr const char* kAdapterFolder = "adapter";  // with train.lora
inline constexpr std::array<std::string_view, 7> kCheckpointFiles{kModelFile,
                                                                  kConfigFile,
                                                                  kMachinesFile,
                                                                  kStateFile,
                                                                  kChecksumsFile,
                                                                  "adapter/adapter_config.json",
                                                                  "adapter/adapter_model.safetensors"};

std::string tensor_file_name(std::string_view stem, size_t part, size_t parts);  // part: from 0
std::string index_name(std::string_view stem);
// Whether `name` is one of those files, or their index
bool is_tensor_file(std::string_view name, std::string_view stem);
// The file with the checksums of what a rank other than the first has written, while a checkpoint is
// unfinished
std::string rank_file_name(int64_t rank);

// Files that other programs keep next to the weights. A run that starts from a folder copies them, unchanged,
// into every checkpoint, so that other programs can use the checkpoint as they used the folder.
inline constexpr std::array<std::string_view, 9> kCopiedFiles{
    "added_tokens.json", "chat_template.jinja",     "generation_config.json",
    "merges.txt",        "special_tokens_map.json", "tokenizer.json",
    "tokenizer.model",   "tokenizer_config.json",   "vocab.json"};
// Chat templates are copied, too: NAME.jinja of this folder
inline constexpr const char* kTemplatesFolder = kMoreTemplatesFolder;
using CopiedFiles = std::map<std::string, std::string>;  // the bytes of files, by name

// Whether a name is that of a file in kTemplatesFolder
bool is_further_template(std::string_view name);
// Writes the files. Returns their checksums. Error: a file cannot be written.
FileChecksums write_copied_files(const std::filesystem::path& folder, const CopiedFiles& files);

// Reads those that exist. Error: a file cannot be read.
CopiedFiles read_copied_files(const std::filesystem::path& folder);

// The fields of config.json that say where texts begin and end, as far as the folder has them. No run depends
// on them, but other programs do. Error: there is no config.json
nlohmann::json read_token_ids(const std::filesystem::path& folder);

// Whether a run may write a file of this name. A file of the adapter is named with its folder.
bool is_checkpoint_file(std::string_view name);

// The text of checksums.json.
std::string checksums_text(const FileChecksums& files);

// The files that a checksums.json lists. A checksums.json has no checksum of its own, so any byte that
// differs from what was written is an Error.
FileChecksums read_checksums_file(const std::filesystem::path& path);

// The checksums.json of a checkpoint; empty for a checkpoint of the first format and for weights that another
// program wrote. Error: it is malformed, or it is missing although state.json is of a format that has one.
FileChecksums written_checksums(const std::filesystem::path& checkpoint);

// The machine that wrote a file, according to machines.json; "" if it does not say
std::string machine_of_file(const std::filesystem::path& checkpoint, const std::string& file);
// The text of machines.json
std::string machines_text(const std::map<std::string, std::string>& machine_of_file);

}  // namespace tessera

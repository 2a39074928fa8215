// The checksums of a folder's files: as JSON, and compared with the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/base/checksum.h"

namespace tessera {

// The files of a folder, by name; of a folder in it as "folder/name".
// In JSON: {"NAME": {"bytes": 5, "xxh3_128": "..."}, ...}
using FileChecksums = std::map<std::string, FileChecksum>;
nlohmann::json json_of(const FileChecksums& files);
// `name` is for messages. Error: another structure, a name outside the folder, no 32 hexadecimal digits.
FileChecksums read_checksums(const nlohmann::json& json, const std::string& name);

// The result of verifying a file
struct FileVerdict {
  std::filesystem::path path;
  int64_t bytes = 0;
  std::string fault;         // empty: none was found
  bool has_checksum = true;  // false: only the structure was checked
};

// Reads all of `files` in `folder` and compares them with their checksums.
std::vector<FileVerdict> verify_files(const std::filesystem::path& folder, const FileChecksums& files);

}  // namespace tessera

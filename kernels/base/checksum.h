// Checksums of files: XXH3 with 128 bits, which finds damage by disks, copies and memory. It is no defence
// against someone who forges a file together with its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace tessera {

// Of bytes that come in parts.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  void update(std::span<const std::byte> bytes);
  std::string digits() const;  // 32 hexadecimal digits, as `xxhsum -H2` prints them

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::span<const std::byte> bytes);

struct FileChecksum {
  int64_t bytes = 0;
  std::string checksum;
  bool operator==(const FileChecksum&) const = default;
};

// Reads the whole file. Error: it cannot be read, with the system's reason.
FileChecksum checksum_of_file(const std::filesystem::path& path);

// The files of a folder, by name. In JSON: {"NAME": {"bytes": 5, "xxh3_128": "..."}, ...}
using FileChecksums = std::map<std::string, FileChecksum>;
nlohmann::json json_of(const FileChecksums& files);
// `name` is for messages. Error: another structure, a name with a slash, no 32 hexadecimal digits.
FileChecksums read_checksums(const nlohmann::json& json, const std::string& name);

// What was found out about a file.
struct FileVerdict {
  std::filesystem::path path;
  int64_t bytes = 0;
  std::string fault;         // empty: none was found
  bool has_checksum = true;  // where not, only its structure was looked at
};

// Reads all of `files` in `folder` and compares.
std::vector<FileVerdict> verify_files(const std::filesystem::path& folder, const FileChecksums& files);

}  // namespace tessera

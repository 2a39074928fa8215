// Checksums of files: XXH3 with 128 bits. They detect damage by disks, copies and memory, but not a file
// that was forged together with its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera {

// The checksum of bytes that arrive in parts
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

}  // namespace tessera

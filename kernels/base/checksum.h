// Checksums of files: XXH3 with 128 bits, which finds damage by disks, copies and memory. It is no defence
// against someone who forges a file together with its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

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

}  // namespace tessera

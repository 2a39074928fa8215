// MemoryLedger: who holds how many bytes now, and who held them when the most were held.
//
// The arena enters every allocation and every release, so the ledger cannot miss one. The tag is declared by
// the one who allocates. Reports are pure functions of the ledger.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class MemoryTag : uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kAttention,  // what attention saves for its backward, and its scratch: the part that is O(N) or O(N^2)
  kWorkspace,
  kCommunication,
  kData,
};
inline constexpr int kMemoryTags = 8;
const char* name_of(MemoryTag tag);

using BytesByTag = std::array<int64_t, kMemoryTags>;  // indexed by MemoryTag

class MemoryLedger {
 public:
  struct Entry {
    MemoryTag tag;
    std::string name;
    int64_t bytes;
  };

  void enter(MemoryTag tag, std::string_view name, int64_t bytes);
  void release_last();  // allocations are released in the reverse of the order they were made

  int64_t current_bytes() const { return total_; }
  int64_t peak_bytes() const { return peak_total_; }
  const BytesByTag& current() const { return current_; }
  const BytesByTag& at_peak() const { return at_peak_; }  // by tag, at the moment of the total's peak
  const std::string& peak_name() const { return peak_name_; }  // of the allocation that made the peak
  const BytesByTag& peak_of_each() const {
    return peak_of_each_;
  }                                                         // each tag's own peak, at moments that may differ
  const std::vector<Entry>& live() const { return live_; }  // oldest first

 private:
  std::vector<Entry> live_;
  BytesByTag current_{}, at_peak_{}, peak_of_each_{};
  int64_t total_ = 0, peak_total_ = 0;
  std::string peak_name_;
};

std::string format_bytes(int64_t bytes);             // "24.3 GiB", "512 B"
std::string format_by_tag(const BytesByTag& bytes);  // "weights 1.2 GiB, activations 512 MiB"; zeros left out

}  // namespace tessera

// The ids of the tokens of a vocabulary, by their content: a hash table, with all contents in one string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// More than the largest vocabularies have; a table of ids is as long as the largest id.
inline constexpr int64_t kMostTokenIds = int64_t{1} << 22;

class TokenIds {
 public:
  struct Entry {
    std::string_view token;  // until the next add()
    int32_t id;
  };

  // False: it is there already, and keeps its id.
  bool add(std::string_view token, int32_t id);
  int32_t find(std::string_view token) const;  // its id; -1: none
  bool contains(std::string_view token) const { return find(token) >= 0; }

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  Entry operator[](size_t i) const { return {content_of(entries_[i]), entries_[i].id}; }  // in order of add()

 private:
  struct Stored {
    size_t first;    // byte of bytes_
    uint32_t count;  // of bytes
    int32_t id;
  };
  struct Slot {
    uint32_t hash = 0;        // the content is only looked at where this is the same
    uint32_t entry = kEmpty;  // its number
  };
  static constexpr uint32_t kEmpty = UINT32_MAX;

  std::string_view content_of(const Stored& entry) const {
    return std::string_view(bytes_).substr(entry.first, entry.count);
  }
  size_t slot_of(std::string_view token,
                 uint32_t hash) const;  // that has it, or the empty one where it belongs
  void grow();

  std::string bytes_;  // of the contents, one after another
  std::vector<Stored> entries_;
  std::vector<Slot> slots_;  // a power of two of them, at most two thirds of which are used
};

}  // namespace tessera

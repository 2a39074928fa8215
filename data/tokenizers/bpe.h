// Byte-pair encoding: the bytes, or characters, of a piece are tokens, and the two neighbours whose merge
// comes first in the list of merges become one token, the leftmost such pair first, until no two neighbours
// have a merge.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/symbols.h"
#include "data/tokenizers/token_ids.h"

namespace tessera {

class Bpe {
 public:
  // The last pieces that were encoded, for one thread at a time
  class Cache;

  // `where` begins the messages. Error: two merges of the same pair.
  Bpe(const TokenizerDefinition& definition, const std::string& where);

  Bpe(const Bpe&) = delete;  // one part refers to another
  Bpe& operator=(const Bpe&) = delete;

  // Appends the ids of a piece. What has no token is treated as Symbols::for_each() says. Time: n log n for n
  // bytes; of characters, where borders cut it, n.
  void encode(std::string_view piece, Cache& cache, std::vector<int32_t>& ids,
              int64_t* left_out = nullptr) const;

  const Symbols& symbols() const { return symbols_; }
  const Borders& borders() const { return borders_; }

 private:
  struct Slot {
    uint64_t pair = UINT64_MAX;  // left id, right id
    int32_t rank = 0, result = 0;
  };
  static constexpr int32_t kNoMerge = INT32_MAX;

  const Slot* merge_of(int32_t left, int32_t right) const;  // null: none
  void encode_part(std::string_view piece, Cache& cache, std::vector<int32_t>& ids, int64_t* left_out) const;
  void encode_anew(std::string_view piece, std::vector<int32_t>& ids, int64_t* left_out) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& ids, int64_t* left_out) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids, int64_t* left_out) const;

  Symbols symbols_;
  Borders borders_;
  std::vector<Slot> merges_;  // a hash table; its size is a power of two
  int shift_ = 0;             // from a hash of 64 bits to an index
  bool ignore_merges_;
  TokenIds whole_;  // with ignore_merges: the tokens
};

class Bpe::Cache {
 public:
  Cache();

 private:
  friend class Bpe;
  static constexpr size_t kBytes = 31;  // of the longest piece that is kept
  static constexpr size_t kIds = 7;     // that a kept piece may have
  static constexpr int kSlotBits = 15;  // of the number of slots; a piece may be in either of two
  // One cache line
  struct alignas(64) Slot {
    std::array<uint64_t, 4> key{};  // the bytes, zeros, and in the last byte their number; 0: empty
    std::array<int32_t, kIds> ids;
    int32_t count;
  };
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace tessera

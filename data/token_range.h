#pragma once

#include <cstdint>

namespace tessera {

// Consecutive tokens of a stream
struct TokenRange {
  int64_t first_token = 0;
  int64_t token_count = 0;
  bool operator==(const TokenRange&) const = default;
};

}  // namespace tessera

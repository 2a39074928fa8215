// AttnMask of attention.h, for tests: C++ warns of fields that are not named.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

namespace tessera::test {

// Without dealt queries
constexpr AttnMask attn_mask(int causal, int64_t offset = 0, int64_t window = 0,
                             const int32_t* documents = nullptr) {
  AttnMask mask{};
  mask.causal = causal, mask.offset = offset, mask.window = window, mask.documents = documents;
  return mask;
}

}  // namespace tessera::test

// Documents that share a sequence: `documents` is [B, T, 2], for every token where its document begins and
// where it ends, counted in tokens of its sequence. Null: a sequence is one document.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

// The place in its document of token n = b T + t
template <class Int>
TESSERA_HOST_DEVICE Int position_of(const int32_t* documents, Int n, Int T) {
  const Int t = n % T;
  return documents ? t - static_cast<Int>(documents[2 * static_cast<int64_t>(n)]) : t;
}

}  // namespace tessera

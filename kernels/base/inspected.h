// What Inspect finds in a tensor, the same for host and device code. Its parts are minima, maxima and a
// count of integers, which have the same values in any order.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

struct Inspected {
  // Of the finite elements, as order_of() has them; none is finite: least > largest
  int32_t least = INT32_MAX, largest = INT32_MIN;
  uint64_t bad = 0;                 // elements that are NaN or infinite
  uint64_t first_bad = UINT64_MAX;  // the place of the first, counted over all elements of the tensor

  bool has_finite() const { return least <= largest; }
};
inline constexpr int64_t kInspectedWords = sizeof(Inspected) / sizeof(int32_t);

// An integer for the bits of a float that is no NaN: smaller for a smaller one; and the way back, which is
// the same function
TESSERA_HOST_DEVICE inline int32_t order_of(int32_t bits) { return bits >= 0 ? bits : bits ^ 0x7fffffff; }

}  // namespace tessera

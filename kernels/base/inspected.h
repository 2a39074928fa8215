// What the operation Inspect finds in a tensor, the same for host and device code. It consists of minima,
// maxima and a count of integers, whose values do not depend on the order of the elements.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

struct Inspected {
  // Of the finite elements, by order_of(). If no element is finite: least > largest
  int32_t least = INT32_MAX, largest = INT32_MIN;
  uint64_t bad = 0;                 // elements that are NaN or infinite
  uint64_t first_bad = UINT64_MAX;  // the index of the first of these among all elements of the tensor

  bool has_finite() const { return least <= largest; }
};
inline constexpr int64_t kInspectedWords = sizeof(Inspected) / sizeof(int32_t);

// An integer for the bits of a float that is not NaN: smaller for a smaller float. The same function turns
// the integer into the bits again.
TESSERA_HOST_DEVICE inline int32_t order_of(int32_t bits) { return bits >= 0 ? bits : bits ^ 0x7fffffff; }

}  // namespace tessera

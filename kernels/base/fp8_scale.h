// The scale of a tensor in FP8, from the bits of its largest magnitude: the same arithmetic on both devices.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

// Scales lie this many elements apart: cuBLASLt needs each of them at a multiple of 16 bytes.
inline constexpr int64_t kFp8ScaleStride = 4;

// The headroom of a delayed scale in binades: the scale of a step is 2^headroom times larger than the step
// before needed, so values that grow by less are not cut off. Headroom costs as many binades at the lower
// end, of which e4m3 has 15 and e5m2 30. Gradients, which are e5m2, change more from step to step than
// activations do.
TESSERA_HOST_DEVICE inline int fp8_headroom(bool is_e4m3) { return is_e4m3 ? 1 : 4; }

inline constexpr uint32_t kFp8One = 0x3f800000u, kInfinityBits = 0x7f800000u;

// Whether a magnitude gives a scale: 0, infinity and NaN do not. Magnitudes are compared by their bits: NaN
// is the largest.
TESSERA_HOST_DEVICE inline bool has_fp8_scale(uint32_t amax) { return amax != 0 && amax < kInfinityBits; }

// The largest magnitude that a tensor with this scale has in FP8
TESSERA_HOST_DEVICE inline float fp8_largest(float scale, bool is_e4m3) {
  return scale * (is_e4m3 ? 448.0f : 57344.0f);
}

// The bits of the least power of two s for which amax / s is at most the largest number of the format, times
// 2^headroom. s is within 2^-100 to 2^100, so that neither s nor 1 / s overflows. The largest number is 1.75
// 2^8 in e4m3 and 1.75 2^15 in e5m2. If amax is 0 or not finite: the bits of 1.
TESSERA_HOST_DEVICE inline uint32_t fp8_scale(uint32_t amax, bool is_e4m3, int headroom) {
  constexpr uint32_t kMantissa = 0x7fffffu, kThreeQuarters = 0x600000u;
  if (!has_fp8_scale(amax)) return kFp8One;
  const int above = (amax & kMantissa) > kThreeQuarters ? 1 : 0;
  int exponent = static_cast<int>(amax >> 23) - 127 - (is_e4m3 ? 8 : 15) + above + headroom;
  exponent = exponent < -100 ? -100 : exponent > 100 ? 100 : exponent;
  return static_cast<uint32_t>(exponent + 127) << 23;
}

}  // namespace tessera

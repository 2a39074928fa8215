// NF4's scales in 8 bits ("double quantisation", Dettmers et al., arXiv:2305.14314, section 3). First the
// mean of a matrix's scales is subtracted from each of them. Then kScaleGroup of these differences share a
// number in fp32, the largest magnitude among them. Each difference becomes the code of one of 256 values
// between -1 and 1: the value times the shared number is nearest to it. The values are 0, 1, 127 positive
// numbers and their negatives: for each i from 0 to 6, 2^i of the positive ones are spread evenly between
// 10^(i - 7) and 10^(i - 6). Values and rounding are those of bitsandbytes, except that the mean is computed
// in fp64.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

inline constexpr int kScaleGroup = 256;
inline constexpr int kMostMatrices = 3;  // stored as one, as q, k and v; each has its own mean and groups

// The value of a code. Values rise with their codes.
TESSERA_HOST_DEVICE constexpr float small_scale_value(int code) {
  constexpr int kZero = 127;
  constexpr float kTens[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  if (code == kZero) return 0;
  if (code == 255) return 1;
  int which = code > kZero ? code - kZero - 1 : kZero - 1 - code;  // the index among the 127 magnitudes
  int exponent = 0;
  for (; which >= 1 << exponent; ++exponent) which -= 1 << exponent;
  // [0.1, 1] is cut into 2^i equal parts. A value is the middle of one of these parts, times a power of ten.
  // bound(i) is where part i begins, computed from the nearer end of [0.1, 1]. fp64 is only used so that the
  // product is exact.
  const int parts = 1 << exponent;
  const float step = (1.0f - 0.1f) / static_cast<float>(parts);
  const auto bound = [&](int i) {
    return i < (parts + 1) / 2 ? static_cast<float>(static_cast<double>(0.1f) + static_cast<double>(step) * i)
                               : static_cast<float>(1.0 - static_cast<double>(step) * (parts - i));
  };
  const float value = kTens[exponent] * ((bound(which) + bound(which + 1)) / 2);
  return code > kZero ? value : -value;
}

// value x largest + offset, rounded twice. A compiler would turn it into a single operation that rounds once.
TESSERA_HOST_DEVICE inline float small_scale(float value, float largest, float offset) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(__fmul_rn(value, largest), offset);
#else
  const volatile float product = value * largest;
  return product + offset;
#endif
}

// The code of the value nearest to x / largest, where x is a scale minus the mean and `largest` is the number
// of its group. The quotient is computed as x (1 / largest), as bitsandbytes does. If two values are equally
// near, the one with the even code is taken. If `largest` is 0, the code is that of 0. `values` has the
// values of all codes.
TESSERA_HOST_DEVICE inline int small_scale_code(const float* values, float x, float largest) {
  if (largest == 0) return 127;
  const float normed = x * (1.0f / largest);
  int low = 0, high = 255;  // the code is at least `low` and at most `high`
  while (low < high) {
    const int middle = (low + high) / 2;
    const float bound = (values[middle] + values[middle + 1]) / 2;
    if (normed > bound || (normed == bound && middle % 2 == 1))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// The mean of a matrix's scales is computed in kMeanLanes sums, which are then added in order. Sum i has the
// scales i, i + kMeanLanes, i + 2 kMeanLanes, ...
inline constexpr int kMeanLanes = 1024;

// Where everything is stored, in words of 32 bits: first a byte for each scale, then the largest magnitude of
// each group, then the mean of each matrix.
struct SmallScalePlaces {
  int64_t first[kMostMatrices + 1] = {};   // the index of each matrix's first scale; last: the number of all
  int64_t groups[kMostMatrices + 1] = {};  // the same for groups
  int matrices = 0;

  explicit SmallScalePlaces(const std::array<int64_t, kMostMatrices>& scales) {
    for (int i = 0; i < kMostMatrices; ++i) {
      const int64_t count = scales[static_cast<size_t>(i)];
      first[i + 1] = first[i] + count, groups[i + 1] = groups[i] + (count + kScaleGroup - 1) / kScaleGroup;
      matrices += count > 0 ? 1 : 0;
    }
  }
  TESSERA_HOST_DEVICE int64_t largest_at() const { return (first[kMostMatrices] + 3) / 4; }
  TESSERA_HOST_DEVICE int64_t means_at() const { return largest_at() + groups[kMostMatrices]; }
  int64_t words() const { return means_at() + matrices; }
  // The number of the matrix that has this scale. Matrices without scales come last.
  TESSERA_HOST_DEVICE int matrix_of(int64_t scale) const {
    return static_cast<int>(scale >= first[1]) + static_cast<int>(scale >= first[2]);
  }
  // The arrays are not indexed by a number that depends on the thread: CUDA would move them to its local
  // memory.
  TESSERA_HOST_DEVICE int64_t group_of(int64_t scale) const {
    const int matrix = matrix_of(scale);
    const int64_t begin = matrix == 2   ? first[2]
                          : matrix == 1 ? first[1]
                                        : 0,
                  group = matrix == 2   ? groups[2]
                          : matrix == 1 ? groups[1]
                                        : 0;
    return group + (scale - begin) / kScaleGroup;
  }
  TESSERA_HOST_DEVICE float scale(const float* words, const float* values, int64_t scale) const {
    const auto code = reinterpret_cast<const unsigned char*>(words)[scale];
    return small_scale(values[code], words[largest_at() + group_of(scale)],
                       words[means_at() + matrix_of(scale)]);
  }
};

}  // namespace tessera

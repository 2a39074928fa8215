// Numbers in 4 bits, two in a byte; blocks of a row share a scale. This header has what kernels of both
// formats share. A format states the size of a block, which half of a byte has the number with the even
// index, how a scale is stored, and how codes and scales are made.
#pragma once

#include "kernels/base/mxfp4.h"
#include "kernels/base/nf4.h"

namespace tessera {

enum class FourBits : uint8_t { kNf4, kMxfp4 };
constexpr const char* name_of(FourBits format) { return format == FourBits::kNf4 ? "NF4" : "MXFP4"; }
constexpr int block_of(FourBits format) { return format == FourBits::kNf4 ? kNf4Block : kMxfp4Block; }
// The words of 32 bits that the scales of a row of this many columns take. MXFP4's scales are bytes, and the
// scales of a row fill whole words.
constexpr int64_t scale_words(FourBits format, int64_t columns) {
  const int64_t scales = columns / block_of(format);
  return format == FourBits::kNf4 ? scales : (scales + 3) / 4;
}

struct Nf4 {
  using Scale = float;
  static constexpr FourBits kFormat = FourBits::kNf4;
  static constexpr int kBlock = kNf4Block, kEvenShift = 4, kOddShift = 0;
  // `largest`: bits of the largest magnitude of a block
  static TESSERA_HOST_DEVICE float scale(uint32_t largest) { return float_of_bits(largest); }
  static TESSERA_HOST_DEVICE float inverse(float scale) { return nf4_inverse(scale); }
  static TESSERA_HOST_DEVICE float factor(float scale) { return scale; }
  static TESSERA_HOST_DEVICE uint32_t code(float x) { return nf4_code(x); }
  static TESSERA_HOST_DEVICE float value(uint32_t code) { return nf4_value(code); }
};

struct Mxfp4 {
  using Scale = uint8_t;
  static constexpr FourBits kFormat = FourBits::kMxfp4;
  static constexpr int kBlock = kMxfp4Block, kEvenShift = 0, kOddShift = 4;
  static TESSERA_HOST_DEVICE uint8_t scale(uint32_t largest) { return mxfp4_scale(largest); }
  static TESSERA_HOST_DEVICE float inverse(uint8_t scale) { return float_of_bits(mxfp4_inverse_bits(scale)); }
  static TESSERA_HOST_DEVICE float factor(uint8_t scale) { return float_of_bits(mxfp4_scale_bits(scale)); }
  static TESSERA_HOST_DEVICE uint32_t code(float x) { return mxfp4_code(x); }
  static TESSERA_HOST_DEVICE float value(uint32_t code) { return mxfp4_value(code); }
};

// Calls launch.template operator()<Nf4>() or operator()<Mxfp4>().
template <class Launch>
void with_four_bits(FourBits format, const Launch& launch) {
  format == FourBits::kNf4 ? launch.template operator()<Nf4>() : launch.template operator()<Mxfp4>();
}

// Where the scale of each block of a matrix is. The last word of a row may have unused places.
template <class Format>
struct ScalePlaces {
  int64_t blocks;  // of a row
  int unused;      // places for scales at the end of a row that have none

  explicit ScalePlaces(int64_t columns)
      : blocks(columns / Format::kBlock),
        unused(static_cast<int>(scale_words(Format::kFormat, columns) * 4 / sizeof(typename Format::Scale) -
                                blocks)) {}
  TESSERA_HOST_DEVICE int64_t of(int64_t block) const {
    return unused == 0 ? block : block + block / blocks * unused;
  }
};

}  // namespace tessera

// Small caches: older keys and values of a text are stored in 8 or 4 bits. This header defines the layout.
//
// A code n stands for the number z + s n. These numbers share a zero z and a step s:
//   keys     one channel, in a group of kGroupTokens successive tokens
//   values   up to value_channels() channels of one token
// All keys of a channel may be far from 0, because of a bias. z removes this offset, so s covers only the
// spread of the channel. z and s are bf16. No number is clipped. So the error is at most half the distance
// between two codes: s / 2. In fp8 it is |s n| / 16, or s / 1024 where |n| is below 1 / 64.
//   int8  n is -128 to 127        int4  -8 to 7        fp8  a number of e4m3, up to 448
//
// The newest tokens are not rounded: they are in a ring of kNewestTokens rows, as the model computes them. A
// text of `length` tokens has codes for its first groups_of(length) groups. The ring has the 65 to 128 tokens
// after these, or the whole text if that is shorter.
//
// A group of one head has group_words() words, in the order in which a kernel reads them. Zeros pad the
// channels to steps() of 16. Lane l of a warp has g = l / 4 and t = l % 4:
//   key scales    [step, t, 4]: s of the channels 2 t and 2 t + 1, s of 2 t + 8 and 2 t + 9; then z likewise
//   tile i of tile_tokens() tokens:
//     value scales    [part, g, tile_tokens() / 8]: the tokens g, g + 8, g + 16, ...; z is the upper half
//     codes of keys   [step, lane, 4]: what the lane has of operand A of mma (kernels/base/ptx.cuh), of 16
//                     tokens by the step's 16 channels; then of the next 16 tokens (CodePlace)
//     codes of values [step, lane, 4]: likewise, of 16 channels by 16 tokens
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/base/host_device.h"
#include "kernels/base/words.h"

namespace tessera {

enum class CacheDtype : uint8_t { kAuto, kF32, kBF16, kFp8, kInt8, kInt4 };  // kAuto: as the model computes
constexpr auto words_of(CacheDtype) {
  return std::array{Word{"auto", CacheDtype::kAuto}, Word{"fp32", CacheDtype::kF32},
                    Word{"bf16", CacheDtype::kBF16}, Word{"fp8", CacheDtype::kFp8},
                    Word{"int8", CacheDtype::kInt8}, Word{"int4", CacheDtype::kInt4}};
}
TESSERA_HOST_DEVICE constexpr bool is_small(CacheDtype dtype) {
  return dtype == CacheDtype::kFp8 || dtype == CacheDtype::kInt8 || dtype == CacheDtype::kInt4;
}

// The zero and the step that some numbers share, as bits of bf16
struct CacheScale {
  uint16_t zero = 0, step = 0;
};

// Where a code is stored: its word, and its first bit in the word. place_of() counts words from the tile's
// keys or values, place_of_key() and place_of_value() from the group.
struct CodePlace {
  int word, shift;
};
// A code's row and column in operand A of mma, 16 x 16. Rows are tokens for keys, and channels for
// values.
struct CodeOf {
  int sub, row, column;  // the first token of the operand is token 16 sub of the tile
};

struct CacheFormat {
  static constexpr int kGroupTokens = 64, kNewestTokens = 2 * kGroupTokens;
  static constexpr int kLanes = 32, kLaneWords = 4;

  CacheDtype dtype = CacheDtype::kAuto;
  int head_dim = 0;

  TESSERA_HOST_DEVICE explicit constexpr operator bool() const { return is_small(dtype); }
  constexpr bool operator==(const CacheFormat&) const = default;

  TESSERA_HOST_DEVICE constexpr int bits() const { return dtype == CacheDtype::kInt4 ? 4 : 8; }
  TESSERA_HOST_DEVICE constexpr int codes_of_word() const { return 32 / bits(); }
  TESSERA_HOST_DEVICE constexpr int tile_tokens() const { return bits() == 4 ? 64 : 32; }
  TESSERA_HOST_DEVICE constexpr int tiles() const { return kGroupTokens / tile_tokens(); }
  TESSERA_HOST_DEVICE constexpr int subs() const { return tile_tokens() / 16; }
  TESSERA_HOST_DEVICE constexpr int value_channels() const { return bits() == 4 ? 64 : 128; }
  TESSERA_HOST_DEVICE constexpr int parts() const {
    return (head_dim + value_channels() - 1) / value_channels();
  }
  TESSERA_HOST_DEVICE constexpr int steps() const { return (head_dim + 15) / 16; }

  TESSERA_HOST_DEVICE constexpr int key_scale_words() const { return steps() * 16; }
  TESSERA_HOST_DEVICE constexpr int value_scale_words() const { return parts() * tile_tokens(); }
  TESSERA_HOST_DEVICE constexpr int code_words() const { return steps() * kLanes * kLaneWords; }
  TESSERA_HOST_DEVICE constexpr int tile_words() const { return value_scale_words() + 2 * code_words(); }
  TESSERA_HOST_DEVICE constexpr int group_words() const { return key_scale_words() + tiles() * tile_words(); }
  TESSERA_HOST_DEVICE constexpr int tile_begin(int tile) const {
    return key_scale_words() + tile * tile_words();
  }

  // The number of groups of a text of `length` tokens that are stored as codes
  TESSERA_HOST_DEVICE static constexpr int64_t groups_of(int64_t length) {
    const int64_t begun = (length + kGroupTokens - 1) / kGroupTokens;
    return begun > 2 ? begun - 2 : 0;
  }
  // The bytes of one head's keys and values in a text of `length` tokens. A number of the newest tokens has
  // `element` bytes.
  constexpr int64_t bytes_of(int64_t length, int64_t element) const {
    return groups_of(length) * group_words() * 4 +
           (length - groups_of(length) * kGroupTokens) * 2 * head_dim * element;
  }

  // The place in the operand of code number `code` of a word, counted from the tile's keys or values
  TESSERA_HOST_DEVICE constexpr CodeOf code_of(int word, int code) const {
    const int lane = word / kLaneWords % kLanes, own = word % kLaneWords;
    // A register of the operand has two codes, half a word apart: its four registers take a word or two.
    const int registers = codes_of_word() / 2, of_word = code % registers, second = code / registers;
    const int which = bits() == 4 ? of_word : own % 2 * 2 + of_word;
    return {.sub = bits() == 4 ? own : own / 2,
            .row = lane / 4 + 8 * (which % 2),
            .column = lane % 4 * 2 + second + 8 * (which / 2)};
  }
  // The word and the bits of a code, the inverse of code_of()
  TESSERA_HOST_DEVICE constexpr CodePlace place_of(int step, CodeOf of) const {
    const int lane = of.row % 8 * 4 + of.column % 8 / 2, second = of.column % 2,
              which = of.row / 8 + of.column / 8 * 2, registers = codes_of_word() / 2;
    const int own = bits() == 4 ? of.sub : of.sub * 2 + which / 2;
    const int code = second * registers + which % registers;
    return {.word = (step * kLanes + lane) * kLaneWords + own, .shift = code * bits()};
  }
  TESSERA_HOST_DEVICE constexpr CodePlace place_of_key(int token, int channel) const {
    const int in_tile = token % tile_tokens();
    CodePlace place = place_of(channel / 16, {in_tile / 16, in_tile % 16, channel % 16});
    place.word += tile_begin(token / tile_tokens()) + value_scale_words();
    return place;
  }
  TESSERA_HOST_DEVICE constexpr CodePlace place_of_value(int token, int channel) const {
    const int in_tile = token % tile_tokens();
    CodePlace place = place_of(channel / 16, {in_tile / 16, channel % 16, in_tile % 16});
    place.word += tile_begin(token / tile_tokens()) + value_scale_words() + code_words();
    return place;
  }
  // A group stores s of a channel of keys here, in units of 16 bits, and z kKeyZero units after it.
  static constexpr int kKeyZero = 4;
  TESSERA_HOST_DEVICE static constexpr int key_step(int channel) {
    const int c = channel % 16;
    return (channel / 16 * 16 + c % 8 / 2 * 4 + c / 8) * 2 + c % 2;
  }
  // The word that has z and s of a token's values
  TESSERA_HOST_DEVICE constexpr int value_scale(int token, int part) const {
    const int in_tile = token % tile_tokens();
    return tile_begin(token / tile_tokens()) + (part * 8 + in_tile % 8) * (tile_tokens() / 8) + in_tile / 8;
  }

  // n reaches from -below() to above().
  TESSERA_HOST_DEVICE constexpr float below() const {
    return dtype == CacheDtype::kInt4 ? 8 : dtype == CacheDtype::kInt8 ? 128 : 448;
  }
  TESSERA_HOST_DEVICE constexpr float above() const {
    return dtype == CacheDtype::kInt4 ? 7 : dtype == CacheDtype::kInt8 ? 127 : 448;
  }
  // The bits of an integer n are n + code_of_zero(), which is not negative.
  TESSERA_HOST_DEVICE constexpr uint32_t code_of_zero() const {
    return dtype == CacheDtype::kInt4 ? 8 : dtype == CacheDtype::kInt8 ? 128 : 0;
  }

  TESSERA_HOST_DEVICE CacheScale scale_of(float least, float most, bool finite) const;
  TESSERA_HOST_DEVICE uint32_t code(float x, CacheScale scale) const;
  TESSERA_HOST_DEVICE float number(uint32_t code) const;  // n
};

namespace cache_format {

TESSERA_HOST_DEVICE inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
TESSERA_HOST_DEVICE inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
TESSERA_HOST_DEVICE inline float widened(uint16_t bf16) { return float_of(static_cast<uint32_t>(bf16) << 16); }
// x is finite.
TESSERA_HOST_DEVICE inline uint16_t nearest_bf16(float x) {
  const uint32_t bits = bits_of(x);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
// The least bf16 that is not below x; x is at least 0.
TESSERA_HOST_DEVICE inline uint16_t bf16_above(float x) {
  return static_cast<uint16_t>((bits_of(x) + 0xffffu) >> 16);
}
TESSERA_HOST_DEVICE inline bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }

// |x| is at most 448. The rounding is that of kernels/base/fp8.h, in whole numbers.
TESSERA_HOST_DEVICE inline uint32_t e4m3_of(float x) {
  const uint32_t bits = bits_of(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  constexpr uint32_t kSmallestNormal = 0x3c800000u;  // 2^-6
  if (size < kSmallestNormal) return sign | static_cast<uint32_t>(rintf(float_of(size) * 512));
  const uint32_t rounded = (size + 0x7ffffu + (size >> 20 & 1u)) >> 20;  // 3 bits of mantissa
  return sign | (rounded - (120u << 3));  // biases of 127 and 7
}
TESSERA_HOST_DEVICE inline float of_e4m3(uint32_t code) {
  return float_of((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f;
}

}  // namespace cache_format

// The zero and step for numbers from `least` to `most`. If one of the numbers is not finite, z is NaN, and so
// is every number that is read back.
inline TESSERA_HOST_DEVICE CacheScale CacheFormat::scale_of(float least, float most, bool finite) const {
  using namespace cache_format;
  constexpr uint16_t kNan = 0x7fc0;
  constexpr float kSmallest = 0x1p-100f;  // so that there is no division by 0
  const float zero = fmaf(most - least, below() / (below() + above()), least);
  if (!finite || !is_finite(zero)) return {.zero = kNan, .step = 0x3f80};
  const uint16_t rounded = nearest_bf16(zero);
  const float z = widened(rounded), up = (most - z) / above(), down = (z - least) / below();
  const float step = fmaxf(fmaxf(up, down), kSmallest);
  if (!is_finite(z) || !is_finite(step)) return {.zero = kNan, .step = 0x3f80};
  return {.zero = rounded, .step = bf16_above(step)};
}

inline TESSERA_HOST_DEVICE uint32_t CacheFormat::code(float x, CacheScale scale) const {
  using namespace cache_format;
  const float n = (x - widened(scale.zero)) / widened(scale.step);
  const float bounded = n < -below() ? -below() : n > above() ? above() : n;  // NaN as well: z says so
  if (dtype == CacheDtype::kFp8) return e4m3_of(bounded == bounded ? bounded : 0);
  return static_cast<uint32_t>(static_cast<int>(rintf(bounded == bounded ? bounded : 0)) +
                               static_cast<int>(code_of_zero()));
}

inline TESSERA_HOST_DEVICE float CacheFormat::number(uint32_t code) const {
  if (dtype == CacheDtype::kFp8) return cache_format::of_e4m3(code);
  return static_cast<float>(static_cast<int>(code) - static_cast<int>(code_of_zero()));
}

}  // namespace tessera

// A learned table of positions, extended to more of them than it was trained for.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/words.h"

namespace tessera {

enum class PositionExtension : uint8_t {
  kNone,         // refused
  kInterpolate,  // stretched: ends meet ends, and what falls between two rows is their weighted mean
                 // (position interpolation, Chen et al., arXiv:2306.15595, for a table that was learned)
  kRepeat,       // copies one after another: row i is row i mod n
  kBlend,        // copies that overlap by kBlendShare of their rows, and go over into one another there
};
inline constexpr int64_t kBlendShare = 8;  // an eighth: n = 1024 rows overlap by 128

constexpr auto words_of(PositionExtension) {  // of model.position_extension
  return std::array{Word{"none", PositionExtension::kNone},
                    Word{"interpolate", PositionExtension::kInterpolate},
                    Word{"repeat", PositionExtension::kRepeat}, Word{"blend", PositionExtension::kBlend}};
}

// Both tables are [rows, channels], `out` the larger one.
void extend_positions(PositionExtension kind, std::span<const float> table, int64_t channels,
                      std::span<float> out);

}  // namespace tessera

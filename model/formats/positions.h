// A learned position table, extended to more positions than it was trained for.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/words.h"

namespace tessera {

enum class PositionExtension : uint8_t {
  kNone,         // refused
  kInterpolate,  // stretched: the ends stay the ends, and positions between two rows get their weighted mean
                 // (position interpolation, Chen et al., arXiv:2306.15595, for a learned table)
  kRepeat,       // copies one after another: row i is row i mod n
  kBlend,        // copies that overlap by 1 / kBlendShare of their rows and fade into each other there
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

// A document of a pair from the losses of its rows, on the host. Kernels add up in threads: preference.cu.
#pragma once

#include <cstdint>

#include "kernels/base/no_target.h"
#include "kernels/preference.h"

namespace tessera {

struct PairRows {
  const int32_t* targets;
  const float *losses, *reference;  // cross entropies of rows; reference: null without one
};
// Of the rows from `begin` to `end`
inline PreferenceSide preference_side(const PairRows& rows, int64_t begin, int64_t end) {
  PreferenceSide side;
  for (int64_t n = begin; n < end; ++n) {
    if (rows.targets[n] == kNoTarget) continue;
    side.logp -= static_cast<double>(rows.losses[n]);
    if (rows.reference) side.reference -= static_cast<double>(rows.reference[n]);
    side.tokens += 1;
  }
  return side;
}

}  // namespace tessera

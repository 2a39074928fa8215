// Dropout (Srivastava et al., JMLR 15, 2014): which elements are dropped, as a function of their place.
//
// The mask is stored nowhere. The backward, a recomputed block, another tile shape, another split into
// micro-batches or ranks and the CPU compute the same bits again, from
//   (seed, step), the sequence in the step's global batch, the place in the model, head, row, column.
// Rows are the tokens of a sequence. Columns are channels, or keys for attention's probabilities.
//
// 16 columns from a multiple of 16 on are a unit. A unit has 128 random bits, eight planes of 16: bit j of
// plane i is bit i of the random byte of column j. A column is kept if its byte is at least the threshold T,
// so T / 256 of all elements are dropped. The planes let eight logical operations compare two units.
#pragma once

#include <cstdint>

#include "kernels/base/random.h"

namespace tessera {

struct Dropout {
  static constexpr int kUnit = 16;             // columns
  static constexpr int kResolution = 256;      // probabilities are multiples of 1 / kResolution
  static constexpr int kRounds = 7;            // of Philox
  static constexpr uint32_t kHeads = 1 << 16;  // the places that one place in the model has for its heads

  int threshold = 0;            // T, below kResolution. 0: nothing is dropped
  uint64_t key = 0;             // made of the run's seed and the step
  uint32_t place = 0;           // of the layer, a multiple of kHeads, plus what head 0 counts as
  uint32_t first_sequence = 0;  // the number of sequence 0 of the batch in the step's global batch
  float factor = 1;             // multiplies all elements, whether or not any are dropped

  TESSERA_HOST_DEVICE explicit operator bool() const { return threshold > 0 || factor != 1; }
  // What kept elements are multiplied by: it keeps the expectation, and includes the factor.
  TESSERA_HOST_DEVICE float scale() const {
    return factor * static_cast<float>(kResolution) / static_cast<float>(kResolution - threshold);
  }
};

// A Dropout prepared for drawing: the numbers that are the same for all elements. Kernels get it as an
// argument.
class DropoutMask {
 public:
  TESSERA_HOST_DEVICE explicit DropoutMask(const Dropout& dropout)
      : keys_(dropout.key),
        place_(dropout.place),
        first_sequence_(dropout.first_sequence),
        scale_(dropout.scale()) {
    for (int i = 0; i < 8; ++i) zeros_[i] = dropout.threshold >> i & 1 ? 0 : ~0u;
  }

  TESSERA_HOST_DEVICE float scale() const { return scale_; }
  // The random bits of a unit of a row; `batch` counts from first_sequence.
  TESSERA_HOST_DEVICE Philox::Words draw(uint32_t batch, uint32_t head, uint32_t row, uint32_t unit) const {
    return keys_.bits({{unit, row, first_sequence_ + batch, place_ + head}});
  }
  // Compares two units: bit j says whether column j of the first unit is kept, bit 16 + j of the second one.
  TESSERA_HOST_DEVICE uint32_t kept(const Philox::Words& first, const Philox::Words& second) const {
    uint32_t kept = ~0u;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < 8; ++i) {
      const uint32_t plane = i % 2 == 0 ? (first[i / 2] & 0xffff) | second[i / 2] << 16
                                        : first[i / 2] >> 16 | (second[i / 2] & 0xffff0000);
      // From the lowest bit up: where the threshold has a 1, a 0 makes the byte smaller; where it has a 0,
      // a 1 makes it larger. That is the majority of three.
      kept = (plane & kept) | (plane & zeros_[i]) | (kept & zeros_[i]);
    }
    return kept;
  }
  // Bits of 32 columns from a multiple of 32 on: bit j tells whether column 32 block + j is kept.
  TESSERA_HOST_DEVICE uint32_t kept(uint32_t batch, uint32_t head, uint32_t row, uint32_t block) const {
    return kept(draw(batch, head, row, 2 * block), draw(batch, head, row, 2 * block + 1));
  }

 private:
  Philox::Keys<Dropout::kRounds> keys_;
  uint32_t zeros_[8];  // all bits set where the threshold has a 0
  uint32_t place_, first_sequence_;
  float scale_;
};

}  // namespace tessera

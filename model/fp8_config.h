// The keys of GEMMs in FP8: in what linear layers multiply (train.gemm_dtype), which layers do so, and how
// scales are found.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class GemmDtype : uint8_t { kBf16, kFp8 };
constexpr auto words_of(GemmDtype) {  // of train.gemm_dtype
  return std::array{Word{"bf16", GemmDtype::kBf16}, Word{"fp8", GemmDtype::kFp8}};
}

enum class Fp8Scaling : uint8_t {
  kDelayed,  // from the largest element of the tensor in the step before
  kCurrent,  // from the tensor's own largest element, which takes one more pass
};
constexpr auto words_of(Fp8Scaling) {  // of train.fp8.scaling
  return std::array{Word{"delayed", Fp8Scaling::kDelayed}, Word{"current", Fp8Scaling::kCurrent}};
}

struct Fp8Config {
  GemmDtype gemm_dtype = GemmDtype::kBf16;
  Fp8Scaling scaling = Fp8Scaling::kDelayed;
  bool edges = false;  // also in the first and the last block
  bool head = false;   // also for the logits
  bool dw = false;     // also for the gradients of the blocks' weights

  bool operator==(const Fp8Config&) const = default;
  explicit operator bool() const { return gemm_dtype == GemmDtype::kFp8; }
  bool has_block(int64_t block, int64_t layers) const {
    return *this && (edges || (block > 0 && block < layers - 1));
  }
};

}  // namespace tessera

// The keys of GEMMs in FP8: what linear layers multiply (train.gemm_dtype), which of them, by which
// scales.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class GemmDtype : uint8_t { kBf16, kFp8 };
constexpr auto words_of(GemmDtype) {  // of train.gemm_dtype
  return std::array{Word{"bf16", GemmDtype::kBf16}, Word{"fp8", GemmDtype::kFp8}};
}

enum class Fp8Scaling : uint8_t {
  kDelayed,  // by the largest element of the step before
  kCurrent,  // by the tensor's own, which takes a pass more
};
constexpr auto words_of(Fp8Scaling) {  // of train.fp8.scaling
  return std::array{Word{"delayed", Fp8Scaling::kDelayed}, Word{"current", Fp8Scaling::kCurrent}};
}

struct Fp8Config {
  GemmDtype gemm_dtype = GemmDtype::kBf16;
  Fp8Scaling scaling = Fp8Scaling::kDelayed;
  bool edges = false;  // the first and the last block, too
  bool head = false;   // the logits, too
  bool dw = false;     // the gradients of the blocks' weights, too

  bool operator==(const Fp8Config&) const = default;
  explicit operator bool() const { return gemm_dtype == GemmDtype::kFp8; }
  bool has_block(int64_t block, int64_t layers) const {
    return *this && (edges || (block > 0 && block < layers - 1));
  }
};

}  // namespace tessera

// The keys of products in FP8: what linear layers multiply (train.gemm_dtype), which of them, by which
// scales.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class Matmul : uint8_t { kBf16, kFp8 };
constexpr auto words_of(Matmul) {  // of train.gemm_dtype
  return std::array{Word{"bf16", Matmul::kBf16}, Word{"fp8", Matmul::kFp8}};
}

enum class Fp8Scaling : uint8_t {
  kDelayed,  // by the largest element of the step before
  kCurrent,  // by the tensor's own, which takes a pass more
};
constexpr auto words_of(Fp8Scaling) {  // of train.fp8.scaling
  return std::array{Word{"delayed", Fp8Scaling::kDelayed}, Word{"current", Fp8Scaling::kCurrent}};
}

struct Fp8Config {
  Matmul matmul = Matmul::kBf16;
  Fp8Scaling scaling = Fp8Scaling::kDelayed;
  bool edges = false;  // the first and the last block, too
  bool head = false;   // the logits, too

  bool operator==(const Fp8Config&) const = default;
  explicit operator bool() const { return matmul == Matmul::kFp8; }
  bool has_block(int64_t block, int64_t layers) const {
    return *this && (edges || (block > 0 && block < layers - 1));
  }
};

}  // namespace tessera

// The ways to attend, as model.attention names them.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class AttentionKind : uint8_t {
  kNaive,  // the N x N probabilities are stored: GEMM, masked softmax, GEMM
  kFlash,  // our fused kernels: one log-sum-exp per row is stored
  kCudnn,  // NVIDIA's fused kernels, as a yardstick; the same is stored
  kFlashFp8,  // as kFlash, with the products of the forward in FP8
};
constexpr auto words_of(AttentionKind) {
  return std::array{Word{"naive", AttentionKind::kNaive}, Word{"flash", AttentionKind::kFlash},
                    Word{"cudnn", AttentionKind::kCudnn}, Word{"flash_fp8", AttentionKind::kFlashFp8}};
}

}  // namespace tessera

// Whose kernels compute GEMMs: NVIDIA's or ours, where there is a choice.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class GemmSource : uint8_t { kAuto, kCublasLt, kTessera };
constexpr auto words_of(GemmSource) {  // of train.gemm_backend
  return std::array{Word{"auto", GemmSource::kAuto}, Word{"cublaslt", GemmSource::kCublasLt},
                    Word{"tessera", GemmSource::kTessera}};
}

}  // namespace tessera

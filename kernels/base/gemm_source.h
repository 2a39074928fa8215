// Whose kernels compute GEMMs, where there is a choice.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class GemmSource : uint8_t { kAuto, kCublasLt, kOwn };
constexpr auto words_of(GemmSource) {  // of train.products
  return std::array{Word{"auto", GemmSource::kAuto}, Word{"cublaslt", GemmSource::kCublasLt},
                    Word{"own", GemmSource::kOwn}};
}

}  // namespace tessera

#pragma once

#include <cstdint>

namespace tessera {

inline constexpr int32_t kNoTarget = -1;  // the target of a token whose loss does not count

}  // namespace tessera

// Groups of a small cache (kernels/attention/small_cache.h) on the CPU
#pragma once

#include "kernels/attention/small_cache.h"

namespace tessera::cpu {

// The keys and values of a group of one head, [kGroupTokens, head_dim] each, `row` elements apart
void widen_group(const CacheFormat& format, const uint32_t* group, float* k, float* v, int64_t row);

}  // namespace tessera::cpu

// Tensor maps: how the copy engine finds the tiles of a strided tensor (PTX ISA 9.0, 5.5).
#pragma once

#include <cuda.h>

#include "kernels/attention/attention.h"

namespace tessera::attention::sm90 {

// Elements across a panel: 128 bytes, as wide as the swizzle allows
inline constexpr int kPanel = 64;

// A map of a bf16 tensor [batch, tokens, heads, head_dim] whose boxes are `rows` tokens of one head, all of
// head_dim, panel after panel: one instruction a tile, with coordinates {0, token, 0, head, batch}. Tokens
// are a dimension of their own, so that rows past the end are read as zeros and never written.
AttnStatus make_tensor_map(CUtensorMap* map, const AttnTensor& tensor, int64_t batch, int64_t tokens,
                           int64_t heads, int head_dim, int rows);

}  // namespace tessera::attention::sm90

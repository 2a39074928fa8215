// Tensor maps: how the copy engine finds the tiles of a strided tensor (PTX ISA 9.0, 5.5).
#pragma once

#include <cuda.h>

#include "kernels/attention/attention.h"

namespace tessera::attention::sm90 {

// Elements across a panel: 128 bytes, as wide as the swizzle allows
inline constexpr int kPanel = 64;

// What a box holds of a head: `rows` tokens, and `panels` neighbouring panels. More than one are all whole; a
// map of one panel says at which column the head ends.
struct Box {
  int columns, panels, rows;
};

// A map of a bf16 tensor [batch, tokens, heads, head_dim] in the coordinates {column, token, panel, head,
// batch}: a box is one instruction, panel after panel. Tokens are a dimension of their own. So rows past the
// end of a sequence, and columns past those that a panel has, are read as zeros and never written; a box
// counts on its mbarrier with all its bytes all the same.
AttnStatus make_tensor_map(CUtensorMap* map, const AttnTensor& tensor, int64_t batch, int64_t tokens,
                           int64_t heads, Box box);

// A map of a bf16 matrix [rows, columns], `ld` elements from one row to the next: boxes of `box_rows` rows
// and a panel. What lies outside is read as zeros and never written. `data` must be a multiple of 16 bytes,
// `ld` of 8 elements; false where the driver refuses.
bool make_matrix_map(CUtensorMap* map, const void* data, int64_t rows, int64_t columns, int64_t ld,
                     int box_rows);

// The boxes that tiles of heads of this size are copied in. Panels that are all whole come in one box; where
// the last is not, each comes alone, and the map says where the head ends: load_tile() in tile.cuh.
constexpr Box box_of(int head_dim, int rows) {
  const bool whole = head_dim % kPanel == 0;
  return {.columns = whole ? kPanel : head_dim, .panels = whole ? head_dim / kPanel : 1, .rows = rows};
}

}  // namespace tessera::attention::sm90

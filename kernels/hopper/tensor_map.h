// Tensor maps: how TMA finds the boxes of a strided tensor (PTX ISA 9.0, 5.5). All are of bf16, swizzled in
// rows of 128 bytes. What lies outside of a tensor is read as zeros and never written.
#pragma once

#include <cuda.h>

#include "kernels/base/view.h"
#include "kernels/hopper/sizes.h"

namespace tessera::hopper {

// The size of a box of a head: `rows` tokens and `panels` neighbouring panels. If it has several panels, all
// are whole. The map of a box with one panel says at which column the head ends.
struct Box {
  int columns, panels, rows;
};

// The boxes in which tiles of this many columns are copied. If a head fills its panels, they come in one box.
// Otherwise each panel comes in a box of its own, and the map says where the head ends: see load_tile() in
// tile.cuh.
constexpr Box box_of(int head_dim, int tile_columns, int rows) {
  const bool whole = head_dim == tile_columns;
  return {.columns = whole ? kPanel : head_dim, .panels = whole ? head_dim / kPanel : 1, .rows = rows};
}

// A tensor [batch, tokens, heads, head_dim] in the coordinates {column, token, panel, head, batch}: a box is
// one instruction, panel after panel. Tokens are a dimension of their own, so that rows past the end of a
// sequence are outside. A box counts on its mbarrier with all its bytes, those outside included.
struct HeadBoxes {
  View<void> tensor;
  int64_t batch, tokens, heads;
  Box box;
};

// A matrix [rows, columns], `ld` elements from one row to the next, in boxes of `box_rows` rows and a panel.
// `data` is a multiple of 16 bytes, `ld` of 8 elements.
struct MatrixBoxes {
  const void* data;
  int64_t rows, columns, ld;
  int box_rows;
};

// Makes a tensor map. False: the driver refuses
bool make_tensor_map(CUtensorMap& map, const HeadBoxes& boxes);
bool make_tensor_map(CUtensorMap& map, const MatrixBoxes& boxes);

}  // namespace tessera::hopper

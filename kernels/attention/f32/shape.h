// Tile shapes of the fp32 kernels. Plain C++.
#pragma once

namespace tessera::attention::f32 {

// The rows of queries and of keys that a CTA takes at a time: as many as let five tiles fit into
// kSharedEverywhere.
constexpr int tile_rows(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 32 : 16; }

}  // namespace tessera::attention::f32

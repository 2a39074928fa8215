// dQ of a query tile: a sum over key blocks, each computed by another CTA. The CTAs of a query tile take
// turns, the highest key block first: each starts its product from what the turn before left, and the last
// one, key block 0, writes bf16. So sums are never zeroed, never read by another kernel, and have the same
// bits every time.
//
// The sums lie in the order of the registers that hold them, so that a warp's accesses are contiguous.
#pragma once

#include "kernels/attention/sm80/backward_args.cuh"
#include "kernels/attention/sm80/fragment.cuh"

namespace tessera::attention::sm80 {

// Which part of a query tile's dQ a warp computes: kWarpQ x kWarpD at (q, d)
template <class Tile>
struct QueryGradient {
  static constexpr int kWarpQ = Tile::kBlockQ < 32 ? Tile::kBlockQ : 32, kWarpsQ = Tile::kBlockQ / kWarpQ,
                       kWarpsD = Tile::kWarps / kWarpsQ;
  static constexpr int kWarpD = Tile::kHeadDim / kWarpsD;
  static constexpr int kTileFloats = Tile::kBlockQ * Tile::kHeadDim;
  using Part = Accumulator<kWarpQ, kWarpD>;
  static constexpr int kPartFloats = kWarpQ * kWarpD / 32;  // of a thread

  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int q = warp / kWarpsD * kWarpQ, d = warp % kWarpsD * kWarpD;

  // float4 r of lane l is at r 32 + l. Other SMs write in between, so nothing may come from L1.
  __device__ __forceinline__ void load(const float* tile_sums, Part& part) const {
    auto from = reinterpret_cast<const float4*>(tile_sums) + warp * (kPartFloats / 4 * 32) + lane;
#pragma unroll
    for (int r = 0; r < kPartFloats / 4; ++r) {
      const float4 four = __ldcg(from + r * 32);
      float(&to)[4] = (&part.at[0][0])[r];
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
  }
  __device__ __forceinline__ void store(float* tile_sums, const Part& part) const {
    auto to = reinterpret_cast<float4*>(tile_sums) + warp * (kPartFloats / 4 * 32) + lane;
#pragma unroll
    for (int r = 0; r < kPartFloats / 4; ++r) {
      const float(&from)[4] = (&part.at[0][0])[r];
      __stcg(to + r * 32, float4{from[0], from[1], from[2], from[3]});
    }
  }

  // The finished part, in bf16, to its rows of dQ; `first` is the tile's first query.
  __device__ __forceinline__ void write(bf16* dq, int64_t stride, int first, int tokens, int head_dim,
                                        const Part& part, float scale) const {
#pragma unroll
    for (int m = 0; m < kWarpQ / 16; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = first + q + 16 * m + 8 * r + lane / 4;
        if (row >= tokens) continue;
        auto to = reinterpret_cast<uint32_t*>(dq + row * stride + d) + lane % 4;
#pragma unroll
        for (int n = 0; n < kWarpD / 8; ++n) {
          if (!Tile::kWhole && d + 8 * n >= head_dim) break;
          to[4 * n] = ptx::pack_bf16(part.at[m][n][2 * r] * scale, part.at[m][n][2 * r + 1] * scale);
        }
      }
    }
  }
};

}  // namespace tessera::attention::sm80

// The softmax of a warp's 16 kTilesM rows: common/softmax.cuh, a state for each 16 rows.
#pragma once

#include "kernels/attention/common/softmax.cuh"

namespace tessera::attention::sm80 {

template <int kTilesM, class Score>
struct WarpSoftmax {
  using Rows = OnlineSoftmax<SumOrder::kOneByOne, Score>;
  Rows rows[kTilesM];

  __device__ __forceinline__ explicit WarpSoftmax(ScoreArgs a) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) rows[m] = Rows(a);
  }

  // Takes a tile of scores into the state: s becomes P = 2^(c s - m), with m
  // raised if need be, and o brought to that m.
  template <int kTilesN, int kTilesO>
  __device__ __forceinline__ void update(float (&s)[kTilesM][kTilesN][4], float (&o)[kTilesM][kTilesO][4]) {
    float largest[kTilesM][2];
    bool raise = false;
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) raise |= rows[m].exceeds(flat(s[m]), largest[m]);
    if (__any_sync(~0u, raise)) {  // one vote for all rows
#pragma unroll
      for (int m = 0; m < kTilesM; ++m) {
        rows[m].raise_to(largest[m]);
        rows[m].rescale(flat(o[m]));
      }
    }
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) rows[m].exponentiate(flat(s[m]));
  }

  template <int kTilesO>
  __device__ __forceinline__ void finish(float (&o)[kTilesM][kTilesO][4]) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) rows[m].finish(flat(o[m]));
  }

 private:
  template <int kTiles>
  static __device__ __forceinline__ float (&flat(float (&x)[kTiles][4]))[4 * kTiles] {
    return reinterpret_cast<float(&)[4 * kTiles]>(x);
  }
};

}  // namespace tessera::attention::sm80

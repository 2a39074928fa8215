#include "kernels/attention/decode/kernels.h"
#include "kernels/attention/decode/launch.cuh"

namespace tessera::attention::decode {
namespace {

template <int kWidth>
AttnStatus launch_width(const AttnDecode& d, CUstream_st* stream) {
  using Tile = F32Tile<kWidth, /*kGeneral=*/true>;
  return d.problem.heads == d.problem.kv_heads
             ? launch_decode<Tile, FmaKernel<Tile, 1>>(d, stream)
             : launch_decode<Tile, FmaKernel<Tile, kHeadsAtOnce>>(d, stream);
}

}  // namespace

AttnStatus decode_f32_general(const AttnDecode& d, CUstream_st* stream) {
  switch (tile_width(ATTN_F32, d.problem.head_dim)) {
    case 64:
      return launch_width<64>(d, stream);
    case 128:
      return launch_width<128>(d, stream);
  }
  return launch_width<256>(d, stream);
}

}  // namespace tessera::attention::decode

#include "kernels/attention/decode/kernels.h"
#include "kernels/attention/decode/launch.cuh"

namespace tessera::attention::decode {
namespace {

template <class Tile>
AttnStatus launch_group(const AttnDecode& d, CUstream_st* stream) {
  return d.problem.heads == d.problem.kv_heads
             ? launch_decode<Tile, FmaKernel<Tile, 1>>(d, stream)
             : launch_decode<Tile, FmaKernel<Tile, kHeadsAtOnce>>(d, stream);
}

}  // namespace

AttnStatus decode_f32(const AttnDecode& d, CUstream_st* stream) {
  switch (tile_width(ATTN_F32, d.problem.head_dim)) {
    case 64:
      return launch_group<F32Tile<64>>(d, stream);
    case 128:
      return launch_group<F32Tile<128>>(d, stream);
  }
  return launch_group<F32Tile<256>>(d, stream);
}

}  // namespace tessera::attention::decode

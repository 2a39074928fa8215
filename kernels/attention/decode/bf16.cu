#include "kernels/attention/decode/kernels.h"
#include "kernels/attention/decode/launch.cuh"

namespace tessera::attention::decode {

AttnStatus decode_bf16(const AttnDecode& d, CUstream_st* stream) {
  switch (tile_width(ATTN_BF16, d.problem.head_dim)) {
    case 64:
      return launch_decode<Bf16Tile<64>, MmaKernel<Bf16Tile<64>>>(d, stream);
    case 96:
      return launch_decode<Bf16Tile<96>, MmaKernel<Bf16Tile<96>>>(d, stream);
    case 128:
      return launch_decode<Bf16Tile<128>, MmaKernel<Bf16Tile<128>>>(d, stream);
  }
  return launch_decode<Bf16Tile<256>, MmaKernel<Bf16Tile<256>>>(d, stream);
}

}  // namespace tessera::attention::decode

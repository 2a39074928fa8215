#include "kernels/attention/decode/kernels.h"
#include "kernels/attention/decode/launch.cuh"

namespace tessera::attention::decode {
namespace {

template <int kWidth>
AttnStatus launch_width(const AttnDecode& d, CUstream_st* stream) {
  using Tile = Bf16Tile<kWidth, /*kGeneral=*/true>;
  return launch_decode<Tile, MmaKernel<Tile>>(d, stream);
}

}  // namespace

AttnStatus decode_bf16_general(const AttnDecode& d, CUstream_st* stream) {
  switch (tile_width(ATTN_BF16, d.problem.head_dim)) {
    case 64:
      return launch_width<64>(d, stream);
    case 96:
      return launch_width<96>(d, stream);
    case 128:
      return launch_width<128>(d, stream);
  }
  return launch_width<256>(d, stream);
}

}  // namespace tessera::attention::decode

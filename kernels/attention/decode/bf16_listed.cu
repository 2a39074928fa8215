#include "kernels/attention/decode/kernels.h"
#include "kernels/attention/decode/launch.cuh"

namespace tessera::attention::decode {

AttnStatus decode_bf16_listed(const AttnDecode& d, CUstream_st* stream) {
  return launch_decode_bf16</*kGeneral=*/true, /*kListed=*/true>(d, stream);
}

}  // namespace tessera::attention::decode

#include "kernels/attention/decode/kernels.h"
#include "kernels/attention/decode/launch.cuh"

namespace tessera::attention::decode {

AttnStatus decode_f32(const AttnDecode& d, CUstream_st* stream) {
  return launch_decode_f32</*kGeneral=*/false>(d, stream);
}

}  // namespace tessera::attention::decode

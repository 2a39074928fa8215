#include "kernels/attention/decode/small_kernel.cuh"

namespace tessera::attention::decode {

AttnStatus decode_int8(const SmallDecode& d, CUstream_st* stream) {
  return launch_small_of<CacheDtype::kInt8>(d, stream);
}

}  // namespace tessera::attention::decode

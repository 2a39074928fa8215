#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_256_narrow(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<Narrow<ForwardTile<256>>>(f, stream);
}
}  // namespace tessera::attention::sm90

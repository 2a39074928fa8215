#include "kernels/attention/kernels.h"
#include "kernels/attention/sm80/forward.cuh"

namespace tessera::attention::sm80 {
AttnStatus forward_128(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<ForwardTile<128>>(f, stream);
}
}  // namespace tessera::attention::sm80

#include "kernels/attention/sm80/forward.cuh"
#include "kernels/attention/sm80/kernels.h"

namespace tessera::attention::sm80 {
AttnStatus forward_256_alibi(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_alibi<ForwardTile<256>>(f, stream);
}
}  // namespace tessera::attention::sm80

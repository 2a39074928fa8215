#include "kernels/attention/sm80/backward_launch.cuh"
#include "kernels/attention/sm80/kernels.h"

namespace tessera::attention::sm80 {
AttnStatus backward_256_alibi(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_alibi<BackwardTile<256>>(f, stream);
}
}  // namespace tessera::attention::sm80
